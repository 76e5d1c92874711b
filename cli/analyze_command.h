#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// shardlens analyze PATH… [--json|--csv] [--steps A:B] [--by unit|collective|step|rank|stream]
// [--top N] [--comm-regex RE]
[[nodiscard]] Action add_analyze_command(CLI::App& app);

}  // namespace shardlens::cli
