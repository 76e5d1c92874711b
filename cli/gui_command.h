#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// `shardlens gui`: becomes shardlens-gui, which lies beside this program where Qt was there to
// build it.
[[nodiscard]] Action add_gui_command(CLI::App& app);

}  // namespace shardlens::cli
