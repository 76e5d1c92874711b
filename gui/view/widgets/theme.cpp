#include "gui/view/widgets/theme.h"

#include <algorithm>
#include <cmath>

namespace shardlens::gui {
namespace {

double luminance(const QColor& color) {
  const auto linear = [](double c) {
    return c <= 0.03928 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(color.redF()) + 0.7152 * linear(color.greenF()) +
         0.0722 * linear(color.blueF());
}

QString style_sheet(const Theme& theme) {
  return QStringLiteral(
             "QToolTip { color: %1; background: %2; border: 1px solid %3; padding: 4px; }"
             "QMainWindow::separator { background: %3; width: 3px; height: 3px; }"
             "QHeaderView::section { background: %4; color: %5; border: 0; border-right: 1px solid "
             "%3;"
             " border-bottom: 1px solid %3; padding: 3px 6px; }"
             "QTreeView, QTableView { border: 0; gridline-color: %3; }"
             "QTreeView::item { padding: 2px 0 4px 0; }"
             "QTableView::item { padding: 0 4px; }"
             "QDockWidget::title { background: %4; padding: 5px 8px; }"
             "QDockWidget { font-weight: 600; }"
             "QTabBar { font-weight: 400; }"
             // Titles of panels are whole; buttons scroll to those for which there is no room.
             "QMainWindow > QTabBar { qproperty-elideMode: ElideNone; "
             "qproperty-usesScrollButtons: true; }"
             "#notice { background: %4; border-left: 4px solid %6; border-bottom: 1px solid %3; }"
             "QLineEdit[invalid=\"true\"] { color: %6; border: 1px solid %6; }"
             "#failure { border: 1px solid %6; border-left: 4px solid %6; padding: 8px; }")
      .arg(theme[Ink::kText].name(), theme[Ink::kPanel].name(), theme[Ink::kGrid].name(),
           theme[Ink::kBand].name(), theme[Ink::kFaintText].name(), theme[Ink::kWarning].name());
}

QPalette palette_of(const Theme& theme) {
  QPalette palette;
  palette.setColor(QPalette::Window, theme[Ink::kPanel]);
  palette.setColor(QPalette::WindowText, theme[Ink::kText]);
  palette.setColor(QPalette::Base, theme[Ink::kBackground]);
  palette.setColor(QPalette::AlternateBase, theme[Ink::kBand]);
  palette.setColor(QPalette::Text, theme[Ink::kText]);
  palette.setColor(QPalette::Button, theme[Ink::kBand]);
  palette.setColor(QPalette::ButtonText, theme[Ink::kText]);
  palette.setColor(QPalette::BrightText, theme[Ink::kWarning]);
  palette.setColor(QPalette::Highlight, theme[Ink::kAccent]);
  palette.setColor(QPalette::HighlightedText, text_on(theme[Ink::kAccent]));
  palette.setColor(QPalette::Link, theme[Ink::kAccent]);
  palette.setColor(QPalette::ToolTipBase, theme[Ink::kPanel]);
  palette.setColor(QPalette::ToolTipText, theme[Ink::kText]);
  palette.setColor(QPalette::PlaceholderText, theme[Ink::kFaintText]);
  palette.setColor(QPalette::Mid, theme[Ink::kGrid]);
  palette.setColor(QPalette::Light, theme.dark ? theme[Ink::kGrid] : QColor(0xff, 0xff, 0xff));
  palette.setColor(QPalette::Dark, theme[Ink::kGrid].darker(130));
  palette.setColor(QPalette::Shadow, QColor(0, 0, 0));
  for (const auto role : {QPalette::Text, QPalette::WindowText, QPalette::ButtonText}) {
    palette.setColor(QPalette::Disabled, role, theme[Ink::kFaintText]);
  }
  return palette;
}

Theme finished(bool dark, const std::array<QColor, kInkCount>& inks) {
  Theme theme;
  theme.dark = dark;
  theme.inks = inks;
  theme.palette = palette_of(theme);
  theme.style = style_sheet(theme);
  return theme;
}

}  // namespace

const Theme& Theme::light() {
  static const Theme kTheme =
      finished(false, {QColor(0x00, 0x72, 0xb2), QColor(0xe6, 0x9f, 0x00), QColor(0x00, 0x9e, 0x73),
                       QColor(0xcc, 0x79, 0xa7), QColor(0x8a, 0x6d, 0x3b), QColor(0x56, 0xb4, 0xe9),
                       QColor(0xb8, 0xc0, 0xcc), QColor(0xd5, 0x5e, 0x00), QColor(0xd9, 0xdd, 0xe3),
                       QColor(0x6a, 0x51, 0xa3), QColor(0xff, 0xff, 0xff), QColor(0xf6, 0xf7, 0xf9),
                       QColor(0xed, 0xef, 0xf3), QColor(0xd4, 0xd8, 0xdf), QColor(0x1b, 0x1f, 0x26),
                       QColor(0x5b, 0x64, 0x72), QColor(0x1f, 0x5f, 0xbf), QColor(0xb3, 0x3a, 0x00),
                       QColor(0x88, 0x22, 0x55)});
  return kTheme;
}

const Theme& Theme::night() {
  static const Theme kTheme =
      finished(true, {QColor(0x1a, 0x74, 0xba), QColor(0xe6, 0x9f, 0x00), QColor(0x1f, 0xb9, 0x8a),
                      QColor(0xcc, 0x79, 0xa7), QColor(0xb0, 0x91, 0x5a), QColor(0x9a, 0xdc, 0xff),
                      QColor(0x4a, 0x52, 0x60), QColor(0xf0, 0x75, 0x1a), QColor(0x3a, 0x41, 0x4c),
                      QColor(0x9e, 0x86, 0xd6), QColor(0x16, 0x19, 0x1f), QColor(0x1e, 0x22, 0x2a),
                      QColor(0x26, 0x2b, 0x34), QColor(0x39, 0x40, 0x4c), QColor(0xe4, 0xe8, 0xee),
                      QColor(0x9a, 0xa4, 0xb2), QColor(0x5a, 0xa2, 0xf0), QColor(0xff, 0x9a, 0x5c),
                      QColor(0x88, 0x33, 0x22)});
  return kTheme;
}

double contrast(const QColor& a, const QColor& b) {
  const double x = luminance(a), y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

QColor text_on(const QColor& background) {
  const QColor black(0x10, 0x12, 0x16), white(0xff, 0xff, 0xff);
  return contrast(background, black) >= contrast(background, white) ? black : white;
}

}  // namespace shardlens::gui
