#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "profiler/analysis/events/event_lists.h"
#include "profiler/analysis/fsdp_log/fsdp_log.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Sets FsdpEvent::grad, and pass in the log of a trace of PyTorch's FSDP2. At first a pass is a
// forward of the root.
//
// [Note: Several forwards] A step may run the root more than once before its backward: for the
// losses of several batches that are added, or first without gradients (the teacher in
// distillation). Such forwards and the backward are one pass. In a step, a forward belongs to the
// next backward of that step; forwards after the last backward, and those of steps without one, are
// evaluations and stay passes of their own. If the backward ran every unit only once for each use
// in the last forward, the forwards before the last one were without gradients. Traces without
// steps (ProfilerStep#k) are left as they are.
void join_forwards(const trace::Trace& trace, const EventLists& lists, FsdpLog& log);

// When each pass that has a backward began, ascending: the microbatches of training.
[[nodiscard]] std::vector<Nanoseconds> training_passes(const FsdpLog& log);

// How many of them begin in most of the steps, not counting steps without any; 1 without steps.
[[nodiscard]] int64_t microbatches_of(std::span<const Nanoseconds> passes,
                                      std::span<const Interval> steps);

}  // namespace shardlens::analysis
