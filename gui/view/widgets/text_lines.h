#pragma once

#include <QString>

class QWidget;

namespace shardlens::gui {

// The text with line breaks, so that no line is longer than a tooltip should be wide. Long names
// are broken too, after a separator if there is one.
[[nodiscard]] QString in_lines(const QString& text);

// The text for a label that wraps its lines: words of more than 40 characters may be broken
// too (at zero-width spaces, after a separator if there is one), so that they do not widen a panel.
[[nodiscard]] QString with_breaks(const QString& text);

// The text as HTML in the theme's error colour, for a label with rich text.
[[nodiscard]] QString in_error_colour(const QString& text, const QWidget& label);

}  // namespace shardlens::gui
