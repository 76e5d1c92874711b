#pragma once

#include <QWidget>

#include "gui/view/widgets/canvas.h"
#include "gui/view/widgets/theme.h"

namespace shardlens::gui {

// A widget that is drawn as a whole on a canvas, in the colours of a theme, which must outlive it.
class DrawnWidget : public QWidget {
  Q_OBJECT
 public:
  explicit DrawnWidget(QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  virtual void drawOn(Canvas& canvas) const = 0;

 protected:
  void paintEvent(QPaintEvent* event) override;
  [[nodiscard]] const Theme& theme() const { return *theme_; }

 private:
  const Theme* theme_;
};

}  // namespace shardlens::gui
