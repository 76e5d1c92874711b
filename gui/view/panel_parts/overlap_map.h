#pragma once

#include <QString>

#include "gui/model/tables/group_overlaps.h"
#include "gui/view/widgets/drawn_widget.h"

namespace shardlens::gui {

// A heat map: the darker a cell, the longer the group of its row and that of its column both ran.
class OverlapMap : public DrawnWidget {
  Q_OBJECT
 public:
  explicit OverlapMap(QWidget* parent = nullptr);
  void show(GroupOverlaps overlaps);
  [[nodiscard]] const GroupOverlaps& overlaps() const { return overlaps_; }
  void drawOn(Canvas& canvas) const override;
  // Where the cell is.
  [[nodiscard]] QRectF cellAt(size_t row, size_t column) const;
  [[nodiscard]] QSize sizeHint() const override;
  [[nodiscard]] QSize minimumSizeHint() const override { return {160, sizeHint().height()}; }

 protected:
  bool event(QEvent* event) override;  // tooltips

 private:
  [[nodiscard]] double namesWidth() const;
  GroupOverlaps overlaps_;
};

}  // namespace shardlens::gui
