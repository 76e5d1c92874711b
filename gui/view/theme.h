#pragma once

#include <array>

#include <QColor>
#include <QPalette>
#include <QString>

#include "gui/view/canvas.h"

namespace shardlens::gui {

// Colours of all inks, and Qt's palette that goes with them.
//
// Source  hues of kinds: Okabe and Ito, "Color Universal Design" (2008), told apart with any form
//         of colour blindness; exposed time also has a pattern.
struct Theme {
  bool dark = false;
  std::array<QColor, kInkCount> inks;
  QPalette palette;
  QString style;  // of widgets, as a style sheet

  [[nodiscard]] const QColor& operator[](Ink ink) const { return inks[static_cast<size_t>(ink)]; }
  [[nodiscard]] static const Theme& light();
  [[nodiscard]] static const Theme& night();
};

// WCAG 2's contrast ratio, 1 to 21.
[[nodiscard]] double contrast(const QColor& a, const QColor& b);
// Black or white, whichever stands out more.
[[nodiscard]] QColor text_on(const QColor& background);

}  // namespace shardlens::gui
