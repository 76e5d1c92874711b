#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// shardlens plan --model M [--strategy S | --plan F] [--mesh RxS] [--world-size W] [--parameters]
// [--actions] [--json]
[[nodiscard]] Action add_plan_command(CLI::App& app);

}  // namespace shardlens::cli
