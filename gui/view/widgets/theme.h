#pragma once

#include <array>

#include <QColor>
#include <QPalette>
#include <QString>

#include "gui/view/widgets/canvas.h"

namespace shardlens::gui {

// The colours of all inks, and Qt's palette and style sheet made from them.
//
// Source  hues of kinds: Okabe and Ito, "Color Universal Design" (2008); they can be distinguished
//         with any form of colour blindness. Exposed time also has a pattern.
struct Theme {
  bool dark = false;
  std::array<QColor, kInkCount> inks;
  QPalette palette;
  QString style;  // style sheet of the widgets

  [[nodiscard]] const QColor& operator[](Ink ink) const { return inks[static_cast<size_t>(ink)]; }
  [[nodiscard]] static const Theme& light();
  [[nodiscard]] static const Theme& night();
};

// WCAG 2's contrast ratio, 1 to 21.
[[nodiscard]] double contrast(const QColor& a, const QColor& b);
// Black or white, whichever has more contrast.
[[nodiscard]] QColor text_on(const QColor& background);

}  // namespace shardlens::gui
