#pragma once

#include <QLabel>

namespace shardlens::gui {

// One line of plain text. It is elided in the middle if there is no room for it, so that a long
// name neither widens the window nor covers what follows the name.
class ElidedLabel : public QLabel {
  Q_OBJECT
 public:
  using QLabel::QLabel;
  [[nodiscard]] QSize minimumSizeHint() const override;

 protected:
  void paintEvent(QPaintEvent* event) override;
};

}  // namespace shardlens::gui
