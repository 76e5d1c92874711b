#pragma once

#include <vector>

#include <QWidget>

#include "gui/model/plan/plan_session.h"
#include "gui/view/widgets/theme.h"

namespace shardlens::gui {

// Plots step time and peak memory of all versions. Versions on the Pareto front are joined by a
// line.
class ParetoPlot : public QWidget {
  Q_OBJECT
 public:
  explicit ParetoPlot(PlanSession& session, QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  [[nodiscard]] QSize minimumSizeHint() const override { return {140, 120}; }

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  PlanSession& session_;
  const Theme* theme_;
};

// Indices of the versions on the Pareto front of step time and peak memory, sorted by step time.
[[nodiscard]] std::vector<size_t> pareto(const std::vector<PlanVersion>& versions);

}  // namespace shardlens::gui
