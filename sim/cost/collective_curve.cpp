#include "sim/cost/collective_curve.h"

#include <algorithm>
#include <limits>

namespace shardlens::sim {
namespace {

using Point = CollectiveCurve::Point;

// Two sizes show a bandwidth if one is at least this many times the other: otherwise their
// difference is mostly noise.
constexpr Bytes kFar = 2;

double slope(const Point& a, const Point& b) {
  return (b.us - a.us) / static_cast<double>(b.bytes - a.bytes);
}

// The slope of the line from zero bytes to the smallest size.
double us_per_byte_below(const CollectiveCurve& curve) {
  const auto& points = curve.points;
  const Point& first = points.front();
  const double in_proportion = first.us / static_cast<double>(first.bytes);
  if (points.size() == 1) {
    return in_proportion;
  }
  const auto far = std::find_if(points.begin() + 1, points.end(), [&first](const Point& point) {
    return point.bytes >= kFar * first.bytes;
  });
  return std::clamp(slope(first, far == points.end() ? points.back() : *far), 0.0, in_proportion);
}

}  // namespace

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

CollectiveCurve non_decreasing(CollectiveCurve curve) {
  double least = std::numeric_limits<double>::infinity();
  for (auto point = curve.points.rbegin(); point != curve.points.rend(); ++point) {
    least = std::min(least, point->us);
    point->us = least;
  }
  return curve;
}

double us_per_byte_beyond(const CollectiveCurve& curve) {
  const auto& points = curve.points;
  const Point& last = points.back();
  const double in_proportion = last.us / static_cast<double>(last.bytes);
  const auto shorter = [&last](const Point& point) { return point.us < last.us; };
  const auto far = std::find_if(points.rbegin(), points.rend(), [&](const Point& point) {
    return point.bytes <= last.bytes / kFar && shorter(point);
  });
  if (far != points.rend()) {
    return std::min(in_proportion, slope(*far, last));
  }
  const auto any = std::find_if(points.begin(), points.end(), shorter);
  return any == points.end() ? in_proportion : std::min(in_proportion, slope(*any, last));
}

double curve_us(const CollectiveCurve& curve, Bytes bytes) {
  const auto& points = curve.points;
  const Point &first = points.front(), &last = points.back();
  if (bytes >= last.bytes) {
    return last.us + us_per_byte_beyond(curve) * static_cast<double>(bytes - last.bytes);
  }
  if (bytes <= first.bytes) {
    return first.us - us_per_byte_below(curve) * static_cast<double>(first.bytes - bytes);
  }
  const auto after =
      std::lower_bound(points.begin(), points.end(), bytes,
                       [](const Point& point, Bytes value) { return point.bytes < value; });
  const Point& before = *std::prev(after);
  return before.us + slope(before, *after) * static_cast<double>(bytes - before.bytes);
}

double size_beyond(const CollectiveCurve& curve, Bytes bytes) {
  const Bytes nearest = std::clamp(bytes, curve.points.front().bytes, curve.points.back().bytes);
  return static_cast<double>(std::max<Bytes>(1, bytes)) / static_cast<double>(nearest);
}

}  // namespace shardlens::sim
