#pragma once

#include <QStringList>

namespace shardlens::gui {

class MainWindow;

// What `--selftest` checks of a window with an open run: that every command runs, that rows and
// parts sum to the headline, and that an export is written. Returns what failed, in words.
[[nodiscard]] QStringList selftest(MainWindow& window);

}  // namespace shardlens::gui
