#include "gui/view/widgets/painter_canvas.h"

#include <array>
#include <cmath>

#include <QFontMetricsF>
#include <QHash>
#include <QPainterPath>

namespace shardlens::gui {
namespace {

constexpr char16_t kFirstLetter = u' ', kLastLetter = u'~';
using LetterWidths = std::array<double, kLastLetter - kFirstLetter + 1>;

const LetterWidths& letter_widths(const QFont& font) {
  static QHash<QString, LetterWidths> all;  // only drawn on by the thread of the widgets
  const QString key = font.key();
  const auto known = all.constFind(key);
  if (known != all.constEnd()) {
    return *known;
  }
  LetterWidths out{};
  const QFontMetricsF metrics(font);
  for (char16_t letter = kFirstLetter; letter <= kLastLetter; ++letter) {
    out.at(letter - kFirstLetter) = metrics.horizontalAdvance(QChar(letter));
  }
  return *all.insert(key, out);
}

// Shaping text takes most of the time of a frame with many labels, so the widths of its letters
// decide whether it fits, and how much of a long text can be visible.
QString elided(const QFont& font, const QString& text, double width) {
  const LetterWidths& widths = letter_widths(font);
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

}  // namespace

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
  painter_.drawText(area, static_cast<int>(Qt::AlignCenter), elided(small_, text, area.width()));
  painter_.setFont(plain_);
}

void PainterCanvas::text(
    const QRectF& area, const QString& text, Ink ink, Qt::Alignment alignment, bool bold) {
  painter_.setFont(bold ? bold_ : plain_);
  painter_.setPen(theme_[ink]);
  painter_.drawText(area, static_cast<int>(alignment),
                    elided(bold ? bold_ : plain_, text, area.width() + 1));
  painter_.setFont(plain_);
}

}  // namespace shardlens::gui
