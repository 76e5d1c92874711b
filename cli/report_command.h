#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// shardlens report PATH… --out report.html [--steps A:B] [--comm-regex RE]
[[nodiscard]] Action add_report_command(CLI::App& app);

}  // namespace shardlens::cli
