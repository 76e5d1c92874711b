#pragma once

#include <optional>
#include <vector>

#include <QString>
#include <QWidget>

#include "gui/model/run/run_data.h"
#include "gui/view/widgets/canvas.h"
#include "gui/view/widgets/theme.h"
#include "sim/scenario/memory_curve.h"

namespace shardlens::gui {

// Memory through a step: what the simulated plan allocates, by category, one on the other; the
// measured curve and the one of the plan as it ran as lines; the device's memory as a line.
//
// Mouse  under the pointer a line; the tooltip says what is allocated and gathered there.
class MemoryPlot : public QWidget {
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
  void setTheme(const Theme& theme);
  void show(Shown shown);
  // What is allocated at the time, by category, and which units are gathered.
  [[nodiscard]] QString textAt(Nanoseconds time) const;
  void drawOn(Canvas& canvas) const;
  [[nodiscard]] QSize sizeHint() const override { return {400, 150}; }
  // Low: the panels beside it must not become higher when the plan is simulated.
  [[nodiscard]] QSize minimumSizeHint() const override { return {120, 56}; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void leaveEvent(QEvent* event) override;
  bool event(QEvent* event) override;

 private:
  [[nodiscard]] QRectF area() const;
  [[nodiscard]] Nanoseconds timeAt(double x) const;
  [[nodiscard]] double xOf(Nanoseconds time) const;
  [[nodiscard]] double yOf(Bytes bytes) const;
  [[nodiscard]] Bytes highest() const;
  [[nodiscard]] Nanoseconds length() const;
  void drawLegend(Canvas& canvas) const;
  void drawStack(Canvas& canvas) const;
  void drawLines(Canvas& canvas) const;
  void drawPeak(Canvas& canvas) const;

  Shown shown_;
  const Theme* theme_;
  std::optional<double> pointer_;
};

}  // namespace shardlens::gui
