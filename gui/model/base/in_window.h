#pragma once

#include <QString>

namespace shardlens::gui {

// A message of the libraries for display. They also serve the command line, so some advise to add
// one of its flags; in the window the text names what the window has for that. Other text stays.
[[nodiscard]] QString in_window(QString message);

}  // namespace shardlens::gui
