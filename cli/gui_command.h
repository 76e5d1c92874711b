#pragma once

#include "cli/subcommand.h"

namespace shardlens::cli {

// `shardlens gui`: replaces this process with shardlens-gui, which is next to this program if it
// was built with Qt.
[[nodiscard]] Action add_gui_command(CLI::App& app);

}  // namespace shardlens::cli
