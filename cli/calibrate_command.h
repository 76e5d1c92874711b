#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// `shardlens calibrate`: measures the constants of a machine from its own runs.
[[nodiscard]] Action add_calibrate_command(CLI::App& app);

}  // namespace shardlens::cli
