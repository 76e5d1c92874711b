#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// shardlens check --baseline PATH… --candidate PATH…, or --run FLAGS --against FLAGS --runs N
[[nodiscard]] Action add_check_command(CLI::App& app);

}  // namespace shardlens::cli
