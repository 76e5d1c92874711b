#pragma once

#include <optional>
#include <vector>

#include <QString>

#include "gui/model/base/time_axis.h"
#include "gui/model/run/run_data.h"
#include "gui/view/widgets/drawn_widget.h"
#include "sim/scenario/memory_curve.h"

namespace shardlens::gui {

// Memory through a step: what the simulated plan allocates, by category, stacked; the measured
// curve and the one of the plan as it ran as lines; the device's memory as a line.
//
// Time   that of the device: see sim::memory_curve().
// Mouse  under the pointer a line; the tooltip says what is allocated and gathered there. The wheel
//        does what it does in the timeline, a drag pans, a double click shows the whole step.
class MemoryPlot : public DrawnWidget {
  Q_OBJECT
 public:
  struct Shown {
    QString title;            // "v2"
    sim::MemoryCurve now;     // of this plan
    RunPointer run;           // its simulated timeline
    QString before_title;     // "v0"
    sim::MemoryCurve before;  // of the plan as it ran; empty if `now` is that plan
    Bytes limit = 0;          // that the allocator can reserve; 0: unknown
    struct Measured {
      Nanoseconds time = 0;  // since the step began
      Bytes bytes = 0;
    };
    std::vector<Measured> measured;  // allocated; empty if not recorded
    QString unfit;                   // drawn instead, for a plan that does not fit: it has no step
  };
  explicit MemoryPlot(QWidget* parent = nullptr);
  void show(Shown shown);
  // What is allocated at the time, by category, and which units are gathered.
  [[nodiscard]] QString textAt(Nanoseconds time) const;
  // The time under the timeline's pointer, since the step began; nullopt: none.
  void setCursorTime(std::optional<Nanoseconds> time);
  [[nodiscard]] std::optional<Nanoseconds> cursorTime() const { return cursor_; }
  [[nodiscard]] const TimeAxis& axis() const { return axis_; }
  void drawOn(Canvas& canvas) const override;
  [[nodiscard]] QSize sizeHint() const override { return {400, 150}; }
  // A small height, so that panels next to it do not become higher when the plan is simulated.
  [[nodiscard]] QSize minimumSizeHint() const override { return {120, 56}; }

 signals:
  // The time under the plot's pointer; nullopt: it left.
  void pointed(std::optional<shardlens::Nanoseconds> time);

 protected:
  void resizeEvent(QResizeEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;
  void leaveEvent(QEvent* event) override;
  bool event(QEvent* event) override;

 private:
  struct Named {  // a square of its colour, with its name at the right
    sim::MemoryCategory category;
    QRectF square;
  };
  [[nodiscard]] QRectF area() const;
  [[nodiscard]] Nanoseconds timeAt(double x) const;
  [[nodiscard]] double xOf(Nanoseconds time) const;
  [[nodiscard]] double yOf(Bytes bytes) const;
  [[nodiscard]] Bytes highest() const;
  [[nodiscard]] Nanoseconds length() const;
  void placeLegend();  // of the categories that are allocated at some time
  void drawLegend(Canvas& canvas) const;
  void drawStack(Canvas& canvas) const;
  void drawLines(Canvas& canvas) const;
  void drawPeak(Canvas& canvas) const;
  void drawBytes(Canvas& canvas) const;  // the scale of bytes
  void drawAxis(Canvas& canvas) const;
  void drawNotes(Canvas& canvas) const;
  [[nodiscard]] bool isInView(Nanoseconds time) const;

  Shown shown_;
  TimeAxis axis_;
  std::optional<double> pointer_;
  std::optional<Nanoseconds> cursor_;
  double last_ = 0;  // where a drag was
  std::vector<Named> legend_;
  double top_ = 0;  // of the plot, below the legend
};

}  // namespace shardlens::gui
