#include "gui/view/widgets/painter_canvas.h"

#include <array>
#include <cmath>
#include <map>

#include <QFontMetricsF>
#include <QHash>
#include <QImage>
#include <QPaintEngine>
#include <QPainterPath>

namespace shardlens::gui {
namespace {

using LetterWidths = PainterCanvas::LetterWidths;
constexpr char16_t kFirstLetter = PainterCanvas::kFirstLetter,
                   kLastLetter = PainterCanvas::kLastLetter;

const LetterWidths& letter_widths(const QFont& font) {
  static std::map<QString, LetterWidths> all;  // only drawn on by the thread of the widgets
  const auto [known, is_new] = all.try_emplace(font.key());
  if (!is_new) {
    return known->second;
  }
  const QFontMetricsF metrics(font);
  for (char16_t letter = kFirstLetter; letter <= kLastLetter; ++letter) {
    known->second.at(letter - kFirstLetter) = metrics.horizontalAdvance(QChar(letter));
  }
  return known->second;
}

// Shaping text takes most of the time of a frame with many labels, so the widths of its letters
// decide whether it fits, and how much of a long text can be visible.
QString elided(const QFont& font, const LetterWidths& widths, const QString& text, double width) {
  double wide = 0;
  qsizetype enough = text.size();
  for (qsizetype i = 0; i < text.size(); ++i) {
    const char16_t letter = text[i].unicode();
    if (letter < kFirstLetter || letter > kLastLetter) {
      return QFontMetricsF(font).elidedText(text, Qt::ElideRight, width);
    }
    wide += widths.at(letter - kFirstLetter);
    if (wide > 2 * width + 100) {
      enough = i + 1;
      break;
    }
  }
  return wide <= width ? text
                       : QFontMetricsF(font).elidedText(text.left(enough), Qt::ElideRight, width);
}

constexpr double kLongArrow = 300;  // pixels
constexpr int kHatchGap = 5;
constexpr double kHatchPen = 1.6;

// One period of the hatching. Lines and a clip for each of many narrow boxes would take most of the
// time of a frame.
const QBrush& hatching(const QColor& color) {
  static QHash<QRgb, QBrush> all;
  const auto known = all.constFind(color.rgba());
  if (known != all.constEnd()) {
    return *known;
  }
  QImage period(kHatchGap, kHatchGap, QImage::Format_ARGB32_Premultiplied);
  period.fill(Qt::transparent);
  QPainter painter(&period);
  painter.setRenderHint(QPainter::Antialiasing);
  painter.setPen(QPen(color, kHatchPen));
  for (const int x : {-kHatchGap, 0, kHatchGap}) {
    painter.drawLine(x - kHatchGap, 2 * kHatchGap, x + 2 * kHatchGap, -kHatchGap);
  }
  painter.end();
  return *all.insert(color.rgba(), QBrush(period));
}

}  // namespace

PainterCanvas::PainterCanvas(QPainter& painter, const Theme& theme)
    : painter_(painter), theme_(theme), plain_(painter.font()), bold_(plain_), small_(plain_) {
  bold_.setBold(true);
  small_.setPointSizeF(plain_.pointSizeF() * 0.88);
  plain_widths_ = &letter_widths(plain_);
  bold_widths_ = &letter_widths(bold_);
  small_widths_ = &letter_widths(small_);
}

void PainterCanvas::fill(const QRectF& area, Ink ink, double opacity) {
  QColor color = theme_[ink];
  color.setAlphaF(static_cast<float>(opacity));
  painter_.fillRect(area, color);
}

// The lines start at multiples of kHatchGap, so that they stay in place while the area moves.
void PainterCanvas::hatch(const QRectF& area, Ink ink) {
  const bool pixels = painter_.paintEngine()->type() == QPaintEngine::Raster &&
                      painter_.device()->devicePixelRatioF() == 1;
  if (pixels) {
    painter_.setBrushOrigin(QPointF(0, area.bottom()));
    painter_.fillRect(area, hatching(theme_[ink]));
    return;
  }
  painter_.save();
  painter_.setClipRect(area, Qt::IntersectClip);
  painter_.setRenderHint(QPainter::Antialiasing);
  painter_.setPen(QPen(theme_[ink], kHatchPen));
  const double from = std::floor((area.left() - area.height()) / kHatchGap) * kHatchGap;
  for (double x = from; x < area.right(); x += kHatchGap) {
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
  if (std::abs(to.x() - from.x()) < kLongArrow) {
    painter_.drawPath(path);
  } else {  // in pieces: the time for one that is filled at once grows with the square of its width
    constexpr int kPieces = 48;
    for (int i = 0; i < kPieces; ++i) {
      painter_.drawLine(path.pointAtPercent(static_cast<double>(i) / kPieces),
                        path.pointAtPercent(static_cast<double>(i + 1) / kPieces));
    }
  }
  const double way = to.y() >= from.y() ? -1 : 1;
  painter_.setBrush(theme_[ink]);
  painter_.drawPolygon(QPolygonF{to, to + QPointF(-3.5, 7 * way), to + QPointF(3.5, 7 * way)});
  painter_.restore();
}

void PainterCanvas::label(const QRectF& area, const QString& text, Ink behind) {
  painter_.setFont(small_);
  painter_.setPen(text_on(theme_[behind]));
  painter_.drawText(area, static_cast<int>(Qt::AlignCenter),
                    elided(small_, *small_widths_, text, area.width()));
  painter_.setFont(plain_);
}

void PainterCanvas::text(
    const QRectF& area, const QString& text, Ink ink, Qt::Alignment alignment, bool bold) {
  painter_.setFont(bold ? bold_ : plain_);
  painter_.setPen(theme_[ink]);
  painter_.drawText(
      area, static_cast<int>(alignment),
      elided(bold ? bold_ : plain_, bold ? *bold_widths_ : *plain_widths_, text, area.width() + 1));
  painter_.setFont(plain_);
}

}  // namespace shardlens::gui
