#include "gui/view/timeline/minimap.h"

#include <algorithm>

namespace shardlens::gui {

using analysis::Interval;

void Minimap::measure(const RunData& run, const TimeAxis& axis) {
  const int width = axis.width();
  heat_.assign(static_cast<size_t>(width), 0);
  if (run.preview) {
    return;
  }
  const double step = static_cast<double>(axis.bounds().length()) / width;
  for (int x = 0; x < width; ++x) {
    Nanoseconds exposed = 0, span = 0;
    for (const auto& rank : run.ranks) {
      const Interval shown{static_cast<Nanoseconds>(x * step),
                           static_cast<Nanoseconds>((x + 1) * step)};
      const analysis::WindowFigures f = rank->live.within(run.own(*rank, shown));
      exposed += f.exposed_comm;
      span += f.duration();
    }
    heat_[static_cast<size_t>(x)] =
        span == 0 ? 0 : static_cast<float>(exposed) / static_cast<float>(span);
  }
}

void Minimap::draw(Canvas& canvas, const RunData& run, const TimeAxis& axis, const QRectF& area) {
  if (heat_.empty()) {
    measure(run, axis);
  }
  const int width = axis.width();
  canvas.fill(area, Ink::kBand);
  for (int x = 0; x < width; ++x) {
    const double heat = heat_[static_cast<size_t>(x)];
    if (heat > 0) {
      const double high = std::max(1.0, area.height() * heat);
      canvas.fill({area.left() + x, area.bottom() - high, 1, high}, Ink::kExposed);
    }
  }
  const double scale = width / static_cast<double>(axis.bounds().length());
  const double left = static_cast<double>(axis.view().start - axis.bounds().start) * scale;
  const double right = static_cast<double>(axis.view().end - axis.bounds().start) * scale;
  canvas.fill({area.left(), area.top(), left, area.height()}, Ink::kPanel, 0.6);
  canvas.fill({area.left() + right, area.top(), area.width() - right, area.height()}, Ink::kPanel,
              0.6);
  canvas.frame({area.left() + left, area.top(), std::max(3.0, right - left - 1), area.height()},
               Ink::kAccent, 1.5);
}

}  // namespace shardlens::gui
