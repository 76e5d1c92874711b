#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// shardlens capture: trains a model under a sharding plan in N processes and records every rank;
// flags in cli/run_options.h.
[[nodiscard]] Action add_capture_command(CLI::App& app);

}  // namespace shardlens::cli
