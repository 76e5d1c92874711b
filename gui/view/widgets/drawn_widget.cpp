#include "gui/view/widgets/drawn_widget.h"

#include <QPainter>

#include "gui/view/widgets/painter_canvas.h"

namespace shardlens::gui {

DrawnWidget::DrawnWidget(QWidget* parent) : QWidget(parent), theme_(&Theme::light()) {}

void DrawnWidget::setTheme(const Theme& theme) {
  theme_ = &theme;
  update();
}

void DrawnWidget::paintEvent(QPaintEvent* /*event*/) {
  QPainter painter(this);
  painter.setFont(font());
  PainterCanvas canvas(painter, *theme_);
  drawOn(canvas);
}

}  // namespace shardlens::gui
