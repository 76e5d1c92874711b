#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// shardlens compare A B [--json]
[[nodiscard]] Action add_compare_command(CLI::App& app);

}  // namespace shardlens::cli
