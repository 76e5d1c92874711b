#pragma once

#include <vector>

#include <QWidget>

#include "gui/model/tables/peak_table.h"
#include "gui/view/widgets/theme.h"

namespace shardlens::gui {

// The peaks of one or two versions as stacked bars, by category, on one scale. A line marks the
// device's memory if it is in range.
class PeakBars : public QWidget {
  Q_OBJECT
 public:
  explicit PeakBars(QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  void show(const std::vector<PeakTable::Peak>& peaks);
  [[nodiscard]] QSize sizeHint() const override;
  [[nodiscard]] QSize minimumSizeHint() const override { return {120, sizeHint().height()}; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  bool event(QEvent* event) override;  // tooltips

 private:
  [[nodiscard]] double scale() const;  // pixels per byte
  std::vector<PeakTable::Peak> peaks_;
  const Theme* theme_;
};

}  // namespace shardlens::gui
