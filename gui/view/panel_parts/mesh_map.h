#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <QString>

#include "gui/model/what_if/mesh_picture.h"
#include "gui/view/panel_parts/mesh_layout.h"
#include "gui/view/widgets/drawn_widget.h"

namespace shardlens::gui {

// The colour of an axis of a mesh.
[[nodiscard]] Ink ink_of_axis(std::string_view axis);

// A drawing of a mesh: nodes with their links, the GPUs in them, in each what its rank holds and
// how long it waited. The groups of the rank under the pointer, or of the chosen one, are marked in
// the colours of their axes; with an axis lit, all groups along it. Of one parameter, the boxes
// that each rank stores.
//
// The number of painted items is bounded: for many ranks each is a bar or a dot, and beyond that
// only nodes are drawn.
class MeshMap : public DrawnWidget {
  Q_OBJECT
 public:
  explicit MeshMap(QWidget* parent = nullptr);
  void show(const MeshPicture& picture);
  void setChosen(std::optional<int64_t> rank);
  void lightAxis(const std::string& axis);  // "": none
  // Shows what each rank stores of one parameter instead of what it holds; empty: of none.
  void showBoxes(RankBoxes boxes);
  [[nodiscard]] const MeshLayout& meshLayout() const { return layout_; }
  void drawOn(Canvas& canvas) const override;
  [[nodiscard]] QSize sizeHint() const override { return {500, 170}; }
  [[nodiscard]] QSize minimumSizeHint() const override { return {140, 60}; }

 signals:
  void rankChosen(int64_t rank);
  void rankOpened(int64_t rank);  // double click

 protected:
  void resizeEvent(QResizeEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void leaveEvent(QEvent* event) override;
  bool event(QEvent* event) override;

 private:
  struct Entry {  // of the legend
    QString text;
    Ink ink = Ink::kText;
    QRectF area;
  };
  void arrange();
  void layOutLegend();
  void drawLegend(Canvas& canvas) const;
  void drawNode(Canvas& canvas, int64_t node) const;
  void drawRank(Canvas& canvas, int64_t rank) const;
  void drawBoxes(Canvas& canvas, const QRectF& area, size_t rank) const;
  void drawDetails(Canvas& canvas, const QRectF& area, int64_t rank) const;
  void drawHeld(Canvas& canvas, const QRectF& area, size_t rank) const;
  void drawWaited(Canvas& canvas, const QRectF& area, size_t rank) const;
  void drawGroups(Canvas& canvas, const QRectF& area, int64_t rank) const;

  MeshPicture picture_;
  MeshLayout layout_;
  std::vector<Entry> legend_;
  std::optional<int64_t> hovered_, chosen_;
  std::string lit_;
  RankBoxes boxes_;
  Bytes scale_ = 1;          // bytes of a full bar
  Nanoseconds longest_ = 1;  // that a rank waited
};

}  // namespace shardlens::gui
