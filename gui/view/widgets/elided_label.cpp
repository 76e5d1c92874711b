#include "gui/view/widgets/elided_label.h"

#include <QPainter>

namespace shardlens::gui {

QSize ElidedLabel::minimumSizeHint() const {
  return {fontMetrics().averageCharWidth() * 8, QLabel::minimumSizeHint().height()};
}

void ElidedLabel::paintEvent(QPaintEvent* /*event*/) {
  QPainter painter(this);
  const QRect area = contentsRect();
  painter.setPen(palette().color(foregroundRole()));
  painter.drawText(area, static_cast<int>(Qt::AlignLeft | Qt::AlignVCenter | Qt::TextSingleLine),
                   fontMetrics().elidedText(text(), Qt::ElideMiddle, area.width()));
}

}  // namespace shardlens::gui
