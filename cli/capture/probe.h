#pragma once

#include <filesystem>
#include <vector>

#include "sim/calibrate/observation.h"

#include "cli/flags/run_options.h"

namespace shardlens::cli {

// Runs that show how fast this machine is: Llamas of a few blocks and different widths, a few steps
// each, fully sharded and replicated, so that products, attention, element-wise kernels and
// collectives come in several sizes. Says on stderr which one is under way. Of `run`,
// processes, device, threads and precision count. The captures stay in `keep`, or are removed where
// it is "".
//
// Threads  no other thread may run, see supervise().
// Errors   those of a capture, with the end of what its ranks said.
[[nodiscard]] std::vector<sim::Observation> probe(const RunOptions& run,
                                                  const std::filesystem::path& keep);

}  // namespace shardlens::cli
