#pragma once

#include <array>
#include <optional>
#include <vector>

#include <QString>

#include "core/base/step_figures.h"
#include "gui/view/widgets/drawn_widget.h"

namespace shardlens::gui {

// Times as bars of their parts: compute, exposed communication, exposed copies and idle, one bar
// below the other, on one scale.
class PartBars : public DrawnWidget {
  Q_OBJECT
 public:
  static constexpr int kParts = 4;
  struct Bar {
    QString label, text;  // left and right of it
    std::array<double, kParts> parts{};
    bool chosen = false;
    bool failed = false;  // the text says why there is no bar
    QString help;         // tooltip
    [[nodiscard]] double sum() const;
  };
  // `caption`: what a bar is, above them; "": it is clear where they are.
  explicit PartBars(const QString& name, const QString& caption = {}, QWidget* parent = nullptr);
  void setLegend(bool shown);  // false: what the colours are is said elsewhere
  void show(std::vector<Bar> bars);
  [[nodiscard]] const std::vector<Bar>& bars() const { return bars_; }
  void drawOn(Canvas& canvas) const override;
  // Where the bar with its texts is; bars that do not fit the height are not drawn.
  [[nodiscard]] QRectF rowOf(size_t bar) const;
  [[nodiscard]] QSize sizeHint() const override;
  [[nodiscard]] QSize minimumSizeHint() const override { return {180, 44}; }

 signals:
  void chosen(size_t bar);

 protected:
  void mousePressEvent(QMouseEvent* event) override;
  bool event(QEvent* event) override;  // tooltips

 private:
  [[nodiscard]] std::optional<size_t> barAt(QPointF position) const;
  [[nodiscard]] double widthOf(QString Bar::*text) const;
  [[nodiscard]] double top() const;  // of the first bar
  void drawLegend(Canvas& canvas) const;
  QString caption_;
  bool legend_ = true;
  std::vector<Bar> bars_;
};

// The parts in the order of the bars, as fractions of `unit`.
[[nodiscard]] std::array<double, PartBars::kParts> parts_of(const StepFigures& figures,
                                                            double unit = 1);
// "compute", "exposed communication", "exposed copies", "idle".
[[nodiscard]] QString name_of_part(int part);
// The same for a narrow place: "exposed comm", "copies".
[[nodiscard]] QString short_name_of_part(int part);
// Fills the area as a part of a bar; exposed time is hatched everywhere.
void draw_part(Canvas& canvas, const QRectF& area, int part);

}  // namespace shardlens::gui
