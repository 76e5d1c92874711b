#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// shardlens convert IN --out OUT [--steps A:B] [--ranks …] [--categories …]
[[nodiscard]] Action add_convert_command(CLI::App& app);

}  // namespace shardlens::cli
