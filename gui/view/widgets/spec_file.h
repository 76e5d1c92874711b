#pragma once

#include <functional>

class QString;
class QWidget;

namespace shardlens::gui {

// Asks for the file of a hardware spec (docs/reference/simulator.md) in a dialog of `parent`, and
// calls `chosen` with its path unless the user cancels.
void choose_spec_file(QWidget& parent, std::function<void(const QString& path)> chosen);

}  // namespace shardlens::gui
