#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// `shardlens validate`: compares published training runs with the simulator's predictions for them.
[[nodiscard]] Action add_validate_command(CLI::App& app);

}  // namespace shardlens::cli
