#pragma once

#include <array>
#include <optional>

#include <QString>

#include "gui/view/panel_parts/part_bars.h"

namespace shardlens::gui {

// The parts of a predicted and of a measured step: a row for each with its colour, both times and
// the error that it makes. The rows sum to the last one, that of the step.
class PartErrors : public DrawnWidget {
  Q_OBJECT
 public:
  struct Row {
    QString predicted, measured, error;
  };
  using Rows = std::array<Row, PartBars::kParts + 1>;  // the parts, and their sum
  explicit PartErrors(QWidget* parent = nullptr);
  void show(const Rows& rows);
  [[nodiscard]] const Rows& rows() const { return rows_; }
  void drawOn(Canvas& canvas) const override;
  [[nodiscard]] QSize sizeHint() const override;
  [[nodiscard]] QSize minimumSizeHint() const override;

 private:
  Rows rows_;
};

}  // namespace shardlens::gui
