#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// `shardlens search`: simulates every plan of a space and writes the fastest that fits.
[[nodiscard]] Action add_search_command(CLI::App& app);

}  // namespace shardlens::cli
