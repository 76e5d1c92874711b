#pragma once

#include <QString>

namespace shardlens::gui {

// The text with line breaks, so that no line is longer than a tooltip should be wide. Long names
// are broken too, after a separator if there is one.
[[nodiscard]] QString in_lines(const QString& text);

}  // namespace shardlens::gui
