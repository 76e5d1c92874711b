#include "sim/calibrate/line_fit.h"

#include <cmath>

namespace shardlens::sim {

Line fit_line(const std::vector<LinePoint>& points) {
  // Weighted by 1 / y², so that errors are relative.
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (const auto& [x, y, times] : points) {
    if (y <= 0) {
      continue;
    }
    const double weight = times / (y * y);
    w += weight;
    wx += weight * x;
    wy += weight * y;
    wxx += weight * x * x;
    wxy += weight * x * y;
  }
  if (w == 0) {
    return {};
  }
  const double determinant = w * wxx - wx * wx;
  const Line proportional{0, wxx > 0 ? wxy / wxx : 0};
  const Line constant{wy / w, 0};
  if (!(determinant > 1e-9 * w * wxx)) {  // all at one x
    return wxx > 0 ? proportional : constant;
  }
  const Line line{(wxx * wy - wx * wxy) / determinant, (w * wxy - wx * wy) / determinant};
  return line.slope < 0 ? constant : line.at_zero < 0 ? proportional : line;
}

std::optional<double> left_out_error(const std::vector<LinePoint>& points) {
  if (points.size() < 3) {
    return std::nullopt;
  }
  double sum = 0;
  int counted = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].y <= 0) {
      continue;
    }
    std::vector<LinePoint> others = points;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    sum += std::abs(fit_line(others).at(points[i].x) / points[i].y - 1);
    ++counted;
  }
  return counted == 0 ? std::nullopt : std::optional(sum / counted);
}

}  // namespace shardlens::sim
