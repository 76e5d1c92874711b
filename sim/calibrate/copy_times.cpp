#include "sim/calibrate/copy_times.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "sim/calibrate/measured_points.h"

namespace shardlens::sim {

double CopyTimes::microseconds(Bytes bytes) const {
  if (points.empty()) {
    return 0;
  }
  const auto x = static_cast<double>(bytes);
  const auto above = std::ranges::upper_bound(points, bytes, {}, &Point::bytes);
  if (above == points.begin() || above == points.end()) {
    const Point& nearest = above == points.end() ? points.back() : points.front();
    return nearest.us * x / static_cast<double>(nearest.bytes);
  }
  const Point &low = *std::prev(above), &high = *above;
  const double share =
      static_cast<double>(bytes - low.bytes) / static_cast<double>(high.bytes - low.bytes);
  return low.us + share * (high.us - low.us);
}

CopyTimes copy_times(std::vector<LinePoint> measured) {
  CopyTimes out;
  for (const LinePoint& each : merged_neighbours(std::move(measured))) {
    out.points.push_back({std::llround(each.x), each.y});
  }
  return out;
}

}  // namespace shardlens::sim
