#pragma once

#include <vector>

#include <QFont>
#include <QPointF>
#include <QRectF>
#include <QString>
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

// A version in the plot, or several that are at about the same place.
struct PlotMark {
  static constexpr double kHalf = 7;  // half of its width and height, with the frame around it
  QPointF at;
  QString name;  // "v0", "v0 v1"
  bool chosen = false;
};
// Where the names are written: next to their marks, within `room`, and if possible without covering
// other marks or names. Units: pixels.
[[nodiscard]] std::vector<QRectF> label_places(const std::vector<PlotMark>& marks,
                                               const QFont& font,
                                               const QRectF& room);

}  // namespace shardlens::gui
