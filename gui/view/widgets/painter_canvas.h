#pragma once

#include <array>

#include <QFont>
#include <QPainter>

#include "gui/view/widgets/canvas.h"
#include "gui/view/widgets/theme.h"

namespace shardlens::gui {

// A canvas that draws on a QPainter: screen, image or SVG. Painter and theme must outlive it.
class PainterCanvas final : public Canvas {
 public:
  // Of the letters of ASCII.
  static constexpr char16_t kFirstLetter = u' ', kLastLetter = u'~';
  using LetterWidths = std::array<double, kLastLetter - kFirstLetter + 1>;

  PainterCanvas(QPainter& painter, const Theme& theme);
  void fill(const QRectF& area, Ink ink, double opacity) override;
  void hatch(const QRectF& area, Ink ink) override;
  void frame(const QRectF& area, Ink ink, double width) override;
  void line(const QPointF& from, const QPointF& to, Ink ink, bool dashed) override;
  void arrow(const QPointF& from, const QPointF& to, Ink ink) override;
  void label(const QRectF& area, const QString& text, Ink behind) override;
  void text(const QRectF& area,
            const QString& text,
            Ink ink,
            Qt::Alignment alignment,
            bool bold) override;

 private:
  QPainter& painter_;
  const Theme& theme_;
  QFont plain_, bold_, small_;
  const LetterWidths *plain_widths_ = nullptr, *bold_widths_ = nullptr, *small_widths_ = nullptr;
};

}  // namespace shardlens::gui
