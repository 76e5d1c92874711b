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
  const auto between = [bytes](const CollectiveCurve::Point& a, const CollectiveCurve::Point& b) {
    return a.us + (b.us - a.us) / static_cast<double>(b.bytes - a.bytes) *
                      static_cast<double>(bytes - a.bytes);
  };
  const CollectiveCurve::Point& last = points.back();
  if (points.size() == 1 || bytes > last.bytes) {
    const auto less =
        std::find_if(points.rbegin(), points.rend(),
                     [&last](const CollectiveCurve::Point& point) { return point.us < last.us; });
    return between(less == points.rend() ? CollectiveCurve::Point{} : *less, last);
  }
  if (bytes <= points.front().bytes) {
    return points.front().us;
  }
  const auto after = std::lower_bound(
      points.begin(), points.end(), bytes,
      [](const CollectiveCurve::Point& point, Bytes value) { return point.bytes < value; });
  return between(*std::prev(after), *after);
}

}  // namespace shardlens::sim
