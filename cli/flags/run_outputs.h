#pragma once

#include "cli/flags/inputs.h"
#include "cli/flags/run_options.h"

namespace shardlens::cli {

// The files that a capture reads.
[[nodiscard]] Inputs inputs_of(const RunOptions& options);

// Checks --out and --save before a capture or a worker writes anything. --save may be the directory
// of checkpoints that --resume continues.
// Errors: UsageError if an input, or another output, would be lost.
void check_outputs(const RunOptions& options);

}  // namespace shardlens::cli
