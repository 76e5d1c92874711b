#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// shardlens simulate --model M --hardware SPEC [plan and step flags of capture] [--world-size W]
// [--ranks all] [--slow-rank R:FACTOR] [--host ahead|compute] [--out DIR] [--json]
[[nodiscard]] Action add_simulate_command(CLI::App& app);

}  // namespace shardlens::cli
