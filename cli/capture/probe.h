#pragma once

#include <filesystem>
#include <vector>

#include "sim/calibrate/observation.h"

#include "cli/flags/run_options.h"

namespace shardlens::cli {

// Measures how fast this machine is: captures a few steps of small Llama models of different
// widths, fully sharded and replicated, so that matrix products, attention, element-wise kernels
// and collectives run in several sizes. Prints progress to stderr. Uses the processes, device,
// threads and precision of `run`. The captures are kept in `keep`; if it is "", they are removed.
//
// Threads  no other thread may run, see supervise().
// Errors   those of a capture, with the last lines of its ranks' output.
[[nodiscard]] std::vector<sim::Observation> probe(const RunOptions& run,
                                                  const std::filesystem::path& keep);

}  // namespace shardlens::cli
