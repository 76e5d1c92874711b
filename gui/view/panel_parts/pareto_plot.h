#pragma once

#include <optional>
#include <vector>

#include <QFont>
#include <QPointF>
#include <QRectF>
#include <QString>
#include <QWidget>

#include "gui/model/what_if/plan_proposals.h"
#include "gui/view/widgets/theme.h"

namespace shardlens::gui {

// Plots step time and peak memory of all versions, and of the plans that a search found (hollow),
// with the device's memory as a line where it is in range. Versions on the Pareto front are joined
// by a line. A click on a version returns to it, one on a found plan makes it a version.
class ParetoPlot : public QWidget {
  Q_OBJECT
 public:
  ParetoPlot(PlanSession& session, PlanProposals& proposals, QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  [[nodiscard]] QSize minimumSizeHint() const override { return {140, 120}; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  bool event(QEvent* event) override;  // tooltips

 private:
  // A version or a found proposal.
  struct Dot {
    Nanoseconds step = 0;
    Bytes peak = 0;
    size_t index = 0;
    bool found = false;
    bool has_step = true;  // false: it does not fit, and is at the right edge
  };
  [[nodiscard]] std::vector<Dot> dots() const;
  [[nodiscard]] std::optional<Dot> dotAt(QPointF position) const;
  [[nodiscard]] QRectF area() const;
  PlanSession& session_;
  PlanProposals& proposals_;
  const Theme* theme_;
};

// Indices of the versions on the Pareto front of step time and peak memory, sorted by step time.
// Versions that do not fit are on no front.
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
