#pragma once

#include <cstddef>
#include <filesystem>

#include "profiler/trace/run.h"
#include "sim/advise/advise.h"

namespace shardlens::cli {

// Captures a run's own plan and the first `count` changes again, alternately and four times, in
// opposite order every second time, and sets AdvisedChange::measured_change.
//
// The flags are those of repeated_capture(), which are printed on stderr first. A model that is not
// where it was then is taken from the capture's directory. Threads  no other thread may run, see
// supervise(). Errors   UsageError for a run that is no capture of this program; InputError for
// tokens that are
//          no longer there; the error of a failed capture, with the last lines of its ranks.
void measure_changes(const std::filesystem::path& directory,
                     const trace::Run& run,
                     size_t count,
                     sim::Advice& advice);

}  // namespace shardlens::cli
