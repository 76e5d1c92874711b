#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <QWidget>

#include "gui/view/widgets/theme.h"
#include "profiler/check/compare.h"

namespace shardlens::gui {

// The metric's result; nullptr: the runs do not have it.
[[nodiscard]] const check::MetricResult* metric_of(const check::CheckResult& result,
                                                   check::Metric metric);

// The change from A's step time to B's, part by part: each bar starts where the bar above it ends.
class WaterfallPlot : public QWidget {
  Q_OBJECT
 public:
  explicit WaterfallPlot(QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  void show(std::shared_ptr<const check::Comparison> comparison);
  struct Part {
    QString name;
    Ink ink = Ink::kIdle;
    double delta = 0;  // ns per step
  };
  // The parts of the step; their changes sum to the step's change.
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  [[nodiscard]] QSize minimumSizeHint() const override;

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  const Theme* theme_;
  std::optional<check::Effect> step_;
  std::vector<Part> parts_;
};

}  // namespace shardlens::gui
