#include "sim/calibrate/copy_times.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>

#include "sim/calibrate/measured_points.h"

namespace shardlens::sim {

namespace {

double per_byte(const CopyTimes::Point& point) {
  return point.us / static_cast<double>(point.bytes);
}

}  // namespace

double CopyTimes::microseconds(Bytes bytes, bool largest) const {
  if (points.empty()) {
    return 0;
  }
  const auto x = static_cast<double>(bytes);
  std::span<const Point> usual(points);
  if (points.size() > 1 && per_byte(points.back()) > per_byte(points.end()[-2])) {
    if (largest) {
      return per_byte(points.back()) * x;
    }
    usual = usual.first(points.size() - 1);
  }
  const auto above = std::ranges::upper_bound(usual, bytes, {}, &Point::bytes);
  if (above == usual.begin() || above == usual.end()) {
    return per_byte(above == usual.end() ? usual.back() : usual.front()) * x;
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
