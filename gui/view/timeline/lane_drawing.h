#pragma once

#include <cstdint>
#include <vector>

#include <QRectF>

#include "gui/model/base/time_axis.h"
#include "gui/model/run/run_data.h"
#include "gui/view/widgets/canvas.h"

namespace shardlens::gui {

// A rank as it is drawn in the timeline.
struct DrawnRank {
  const RunData& run;
  const RankData& rank;
  const TimeAxis& axis;
  double left = 0;        // pixel of the axis' start
  Nanoseconds shift = 0;  // from the run's display time to the axis

  // The interval in view, in the rank's own time.
  [[nodiscard]] analysis::Interval view() const;
  [[nodiscard]] double pixelOf(Nanoseconds own) const;
  // The time of `count` pixels of the axis from `first` on, in the rank's own time.
  [[nodiscard]] analysis::Interval pixels(double first, double count) const;
};

// Draws the rows of ranks.
class LaneDrawing {
 public:
  // The items of one row of a lane.
  void drawRow(Canvas& canvas,
               const DrawnRank& rank,
               const Lane& lane,
               const LaneRow& row,
               const QRectF& area,
               double opacity);
  // A collapsed rank: the busy fraction of its compute, and ticks where communication is exposed.
  void drawSummary(Canvas& canvas, const DrawnRank& rank, const QRectF& area);
  // How many events the device has in its queue. Requires RankData::queue.
  void drawQueue(Canvas& canvas, const DrawnRank& rank, const QRectF& area) const;
  // Requires memory figures of the rank.
  void drawMemory(Canvas& canvas, const DrawnRank& rank, const QRectF& area) const;
  // The memory that it draws: of the GPU if there are several devices.
  [[nodiscard]] static const analysis::MemoryFigures& shownMemory(const RankData& rank);

 private:
  std::vector<Tile> tiles_;  // a member only to reuse its memory
};

// "layers.3" for "model.layers.3", "root" for "".
[[nodiscard]] QString short_name(const std::string& fqn);

}  // namespace shardlens::gui
