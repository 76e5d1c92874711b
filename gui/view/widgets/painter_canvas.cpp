#include "gui/view/widgets/painter_canvas.h"

#include <cmath>

#include <QFontMetricsF>
#include <QPainterPath>

namespace shardlens::gui {

PainterCanvas::PainterCanvas(QPainter& painter, const Theme& theme)
    : painter_(painter), theme_(theme), plain_(painter.font()), bold_(plain_), small_(plain_) {
  bold_.setBold(true);
  small_.setPointSizeF(plain_.pointSizeF() * 0.88);
}

void PainterCanvas::fill(const QRectF& area, Ink ink, double opacity) {
  QColor color = theme_[ink];
  color.setAlphaF(static_cast<float>(opacity));
  painter_.fillRect(area, color);
}

void PainterCanvas::hatch(const QRectF& area, Ink ink) {
  // Drawn as lines: a brush pattern would jump with the area while panning.
  constexpr double kGap = 5;
  painter_.save();
  painter_.setClipRect(area, Qt::IntersectClip);
  painter_.setRenderHint(QPainter::Antialiasing);
  painter_.setPen(QPen(theme_[ink], 1.6));
  const double from = std::floor((area.left() - area.height()) / kGap) * kGap;
  for (double x = from; x < area.right(); x += kGap) {
    painter_.drawLine(QPointF(x, area.bottom()), QPointF(x + area.height(), area.top()));
  }
  painter_.restore();
}

void PainterCanvas::frame(const QRectF& area, Ink ink, double width) {
  painter_.setPen(QPen(theme_[ink], width));
  painter_.setBrush(Qt::NoBrush);
  painter_.drawRect(area);
}

void PainterCanvas::line(const QPointF& from, const QPointF& to, Ink ink, bool dashed) {
  painter_.setPen(QPen(theme_[ink], 1, dashed ? Qt::DashLine : Qt::SolidLine));
  painter_.drawLine(from, to);
}

void PainterCanvas::arrow(const QPointF& from, const QPointF& to, Ink ink) {
  painter_.save();
  painter_.setRenderHint(QPainter::Antialiasing);
  painter_.setPen(QPen(theme_[ink], 1.6));
  QPainterPath path(from);
  const double bend = (to.y() - from.y()) / 2;
  path.cubicTo(from + QPointF(0, bend), to - QPointF(0, bend), to);
  painter_.drawPath(path);
  const double way = to.y() >= from.y() ? -1 : 1;
  painter_.setBrush(theme_[ink]);
  painter_.drawPolygon(QPolygonF{to, to + QPointF(-3.5, 7 * way), to + QPointF(3.5, 7 * way)});
  painter_.restore();
}

void PainterCanvas::label(const QRectF& area, const QString& text, Ink behind) {
  painter_.setFont(small_);
  painter_.setPen(text_on(theme_[behind]));
  const QFontMetricsF metrics(small_);
  painter_.drawText(area, static_cast<int>(Qt::AlignCenter),
                    metrics.elidedText(text, Qt::ElideRight, area.width()));
  painter_.setFont(plain_);
}

void PainterCanvas::text(
    const QRectF& area, const QString& text, Ink ink, Qt::Alignment alignment, bool bold) {
  painter_.setFont(bold ? bold_ : plain_);
  painter_.setPen(theme_[ink]);
  const QFontMetricsF metrics(painter_.font());
  painter_.drawText(area, static_cast<int>(alignment),
                    metrics.elidedText(text, Qt::ElideRight, area.width() + 1));
  painter_.setFont(plain_);
}

}  // namespace shardlens::gui
