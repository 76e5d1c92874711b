#pragma once

#include <optional>
#include <vector>

#include <QString>

#include "gui/model/base/plot_scale.h"
#include "gui/model/what_if/plan_space.h"
#include "gui/view/widgets/drawn_widget.h"

namespace shardlens::gui {

// Step time and peak memory of all plans of a search: axes, the device's memory, the front with
// the intervals of its steps, and versions. Points are coloured by a knob. Dragging a rectangle
// brushes the points in it; a click chooses one, a double click opens it. A click on a value of the
// legend dims the others.
class SpacePlot : public DrawnWidget {
  Q_OBJECT
 public:
  struct Version {
    QString name;
    Nanoseconds step = 0;
    Bytes peak = 0;
    bool chosen = false;
  };
  explicit SpacePlot(QWidget* parent = nullptr);
  // `space` must outlive the plot or be followed by another show(). Drops brush and choice.
  void show(const PlanSpace& space);
  void showVersions(std::vector<Version> versions);
  void setKnob(size_t knob);  // of space_knobs()
  void setChosen(std::optional<size_t> point);

  // In the brushed rectangle; empty: nothing is brushed.
  [[nodiscard]] const std::vector<size_t>& brushed() const { return brushed_; }
  void clearBrush();
  [[nodiscard]] QPointF placeOf(size_t point) const;
  [[nodiscard]] std::optional<size_t> pointAt(QPointF position) const;
  void drawOn(Canvas& canvas) const override;
  [[nodiscard]] QSize sizeHint() const override { return {520, 260}; }
  [[nodiscard]] QSize minimumSizeHint() const override { return {220, 110}; }

 signals:
  void brushChanged();
  void pointChosen(size_t point);
  void pointOpened(size_t point);

 protected:
  void resizeEvent(QResizeEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;
  bool event(QEvent* event) override;  // tooltips

 private:
  struct Entry {  // of the legend
    QString value;
    QRectF area;
  };
  [[nodiscard]] QRectF area() const;
  [[nodiscard]] double legendLeft() const;
  void layOutLegend();
  [[nodiscard]] QPointF place(Nanoseconds step, Bytes peak, bool fits) const;
  [[nodiscard]] Ink inkOf(size_t point) const;
  [[nodiscard]] bool isDim(size_t point) const;
  [[nodiscard]] QRectF placeOfLimit(double line, double wide) const;
  void drawAxes(Canvas& canvas) const;
  void drawPoints(Canvas& canvas) const;
  void drawVersions(Canvas& canvas) const;
  void scale();
  void brush(const QRectF& rectangle);
  const PlanSpace* space_ = nullptr;
  std::vector<Version> versions_;
  PlotScale steps_, peaks_;
  bool has_unfit_ = false;
  size_t knob_ = 0;
  std::vector<QString> values_;     // of the knob
  std::vector<Entry> legend_;       // of those for which there is room
  std::vector<uint32_t> value_of_;  // by point, into values_
  std::optional<size_t> lit_;       // into values_
  std::optional<size_t> chosen_;
  std::vector<size_t> brushed_;
  std::vector<bool> is_brushed_;  // by point; empty: nothing is
  std::optional<QPointF> pressed_;
  QRectF dragged_;
};

// The colour of the value with this number, repeated after the last one.
[[nodiscard]] Ink ink_of_value(size_t value);

}  // namespace shardlens::gui
