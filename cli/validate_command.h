#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// `shardlens validate`: published training runs beside what the simulator predicts for them.
[[nodiscard]] Action add_validate_command(CLI::App& app);

}  // namespace shardlens::cli
