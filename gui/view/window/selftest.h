#pragma once

#include <QStringList>

namespace shardlens::gui {

class MainWindow;

// The checks of `--selftest` on a window with an open run: every command runs, rows and parts sum
// to the headline, and exports are written. Returns a description of each failed check.
[[nodiscard]] QStringList selftest(MainWindow& window);

}  // namespace shardlens::gui
