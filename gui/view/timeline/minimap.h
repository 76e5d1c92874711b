#pragma once

#include <vector>

#include <QRectF>

#include "gui/model/base/time_axis.h"
#include "gui/model/run/run_data.h"
#include "gui/view/widgets/canvas.h"

namespace shardlens::gui {

// The whole run over all ranks: the exposed fraction of each pixel, and the position of the view.
class Minimap {
 public:
  void reset() { heat_.clear(); }  // after the run or the width changed
  void draw(Canvas& canvas, const RunData& run, const TimeAxis& axis, const QRectF& area);

 private:
  void measure(const RunData& run, const TimeAxis& axis);
  std::vector<float> heat_;  // exposed fraction of each pixel
};

}  // namespace shardlens::gui
