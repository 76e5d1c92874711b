#pragma once

#include <QString>

namespace shardlens::gui {

// A message of the libraries, as the window shows it. Where a message advises a flag of the command
// line, the text names the window's own command for it. Other text stays.
[[nodiscard]] QString in_window(QString message);

}  // namespace shardlens::gui
