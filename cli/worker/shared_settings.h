#pragma once

#include <cstdint>
#include <string>

#include "cli/flags/prepared_run.h"
#include "cli/flags/run_options.h"

namespace shardlens::cli {

// The settings that all ranks of a run must have in common, as text: the versions of the engine and
// of torch, the flags that differ from their defaults, without those that only concern a rank's own
// process or files, the step from which they train, and hashes of model and plan. The ranks compare
// it before they train, since a launcher other than `shardlens capture` can start them with
// different programs and flags.
[[nodiscard]] std::string shared_settings(const RunOptions& options,
                                          const PreparedRun& prepared,
                                          int64_t first_step);

}  // namespace shardlens::cli
