#pragma once

#include <vector>

#include <QWidget>

#include "gui/model/plan_session.h"
#include "gui/view/theme.h"

namespace shardlens::gui {

// Step time against peak memory of all versions; those that no other beats in both are joined.
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

// Versions by number that no other beats in step time and peak memory at once, by step time.
[[nodiscard]] std::vector<size_t> pareto(const std::vector<PlanVersion>& versions);

}  // namespace shardlens::gui
