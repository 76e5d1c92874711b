#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::analysis {

struct Sources;

// Keeps in `lists` the device events of one device: that of the options, or the one with nearly all
// of the kernels' time. Devices without kernels, to which copies were made, are kept too.
//
// Errors  InputError for a trace whose kernels ran on several devices, if the options name none of
//         them.
void choose_device(const trace::Trace& trace,
                   const TimelineOptions& options,
                   EventLists& lists,
                   std::vector<trace::Diagnostic>& diagnostics);

// The evidence, for messages, that work ran on a device of which the trace has no kernels: "NCCL
// ran (nccl:all_reduce)"; "": nothing, or the trace has kernels.
[[nodiscard]] std::string missing_kernels(const Sources& sources);

// The profiler's activity that records the kernels; for messages.
[[nodiscard]] std::string_view activity_of_kernels(const trace::Trace& trace);

}  // namespace shardlens::analysis
