#pragma once

#include <optional>
#include <vector>

#include "gui/model/tables/roofline_table.h"
#include "gui/view/widgets/drawn_widget.h"

namespace shardlens::gui {

// The rows of a RooflineTable that compute: FLOPs per second over FLOPs per byte, on logarithmic
// axes, below the roofline of the GPU, if it is known. Recorded ones are filled, simulated ones are
// hollow; the larger, the more of the step's time they take. A click chooses a row.
class RooflinePlot : public DrawnWidget {
  Q_OBJECT
 public:
  explicit RooflinePlot(QWidget* parent = nullptr);
  void show(const RooflineTable& table);
  void setChosen(std::optional<size_t> row);  // index into RooflineTable::rows()
  void drawOn(Canvas& canvas) const override;
  [[nodiscard]] std::optional<size_t> rowAt(const QPointF& position) const;
  [[nodiscard]] QPointF placeOf(size_t row) const;  // its middle; requires a row that computes
  [[nodiscard]] QSize sizeHint() const override { return {360, 160}; }
  [[nodiscard]] QSize minimumSizeHint() const override { return {120, 56}; }

 signals:
  void rowChosen(size_t row);

 protected:
  void mousePressEvent(QMouseEvent* event) override;
  bool event(QEvent* event) override;  // tooltips

 private:
  struct Dot {
    size_t row = 0;
    double intensity = 0, tflops = 0, half = 0;  // half: of its width, in pixels
    bool measured = false;
    QString text;
  };
  [[nodiscard]] QRectF area() const;
  [[nodiscard]] double xOf(double intensity) const;
  [[nodiscard]] double yOf(double tflops) const;
  void drawAxes(Canvas& canvas) const;
  void drawRoof(Canvas& canvas) const;

  std::vector<Dot> dots_;
  std::optional<sim::GpuSpec> gpu_;
  std::optional<size_t> chosen_;
  double low_x_ = 1, high_x_ = 10, low_y_ = 1, high_y_ = 10;
};

}  // namespace shardlens::gui
