#include "sim/cost/collective_curve.h"

#include <algorithm>

namespace shardlens::sim {

const CollectiveCurve* find_curve(const std::vector<CollectiveCurve>& curves,
                                  CollectiveKind kind,
                                  int ranks) {
  for (const CollectiveCurve& curve : curves) {
    if (curve.kind == kind && curve.ranks == ranks) {
      return &curve;
    }
  }
  return nullptr;
}

double curve_us(const CollectiveCurve& curve, Bytes bytes) {
  const auto& points = curve.points;
  if (points.size() == 1) {
    return points.front().us * static_cast<double>(bytes) /
           static_cast<double>(points.front().bytes);
  }
  if (bytes <= points.front().bytes) {
    return points.front().us;
  }
  auto after = std::lower_bound(
      points.begin(), points.end(), bytes,
      [](const CollectiveCurve::Point& point, Bytes value) { return point.bytes < value; });
  after = after == points.end() ? std::prev(points.end()) : after;
  const auto before = std::prev(after);
  const double slope = (after->us - before->us) / static_cast<double>(after->bytes - before->bytes);
  return before->us + slope * static_cast<double>(bytes - before->bytes);
}

}  // namespace shardlens::sim
