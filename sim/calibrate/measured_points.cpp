#include "sim/calibrate/measured_points.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace shardlens::sim {
namespace {

// A size, and the times that were measured at it and its neighbours.
struct Neighbours {
  double x = 0, weight = 0;
  std::vector<LinePoint> members;

  void add(const Neighbours& other) {
    x = (x * weight + other.x * other.weight) / (weight + other.weight);
    weight += other.weight;
    members.insert(members.end(), other.members.begin(), other.members.end());
  }
};

// The mean of the central half of the weight, so that a few unusual times do not count.
double interquartile_mean(std::vector<LinePoint> members, double weight) {
  if (members.size() == 1) {
    return members.front().y;  // exactly, without rounding
  }
  std::sort(members.begin(), members.end(),
            [](const LinePoint& a, const LinePoint& b) { return a.y < b.y; });
  const double low = weight / 4, high = 3 * weight / 4;
  double sum = 0, before = 0;
  for (const LinePoint& each : members) {
    const double after = before + each.weight;
    sum += each.y * std::max(0.0, std::min(after, high) - std::max(before, low));
    before = after;
  }
  return sum / (high - low);
}

bool combine(double smaller, double larger) {
  return larger == smaller || larger < kNeighbours * smaller;
}

// Times shared by adjacent sizes.
struct Level {
  std::vector<double> sizes;
  double us = 0, weight = 0;
};

std::vector<Level> never_falling(const std::vector<LinePoint>& points) {
  std::vector<Level> levels;
  for (const LinePoint& each : points) {
    levels.push_back({{each.x}, each.y, each.weight});
    while (levels.size() > 1 && levels.back().us < levels[levels.size() - 2].us) {
      const Level last = std::move(levels.back());
      levels.pop_back();
      Level& into = levels.back();
      into.us = (into.us * into.weight + last.us * last.weight) / (into.weight + last.weight);
      into.weight += last.weight;
      into.sizes.insert(into.sizes.end(), last.sizes.begin(), last.sizes.end());
    }
  }
  return levels;
}

}  // namespace

std::vector<LinePoint> merged_neighbours(std::vector<LinePoint> points) {
  std::sort(points.begin(), points.end(),
            [](const LinePoint& a, const LinePoint& b) { return a.x < b.x; });
  std::vector<Neighbours> groups;
  groups.reserve(points.size());
  for (const LinePoint& each : points) {
    groups.push_back({each.x, each.weight, {each}});
  }
  // Means move when points are combined, so it is repeated until no neighbours are left.
  for (size_t before = groups.size() + 1; groups.size() < before;) {
    before = groups.size();
    std::vector<Neighbours> combined;
    double first = 0;
    for (Neighbours& each : groups) {
      if (!combined.empty() && combine(first, each.x)) {
        combined.back().add(each);
      } else {
        first = each.x;
        combined.push_back(std::move(each));
      }
    }
    groups = std::move(combined);
  }
  std::vector<LinePoint> out;
  out.reserve(groups.size());
  for (Neighbours& each : groups) {
    out.push_back({each.x, interquartile_mean(std::move(each.members), each.weight), each.weight});
  }
  return out;
}

CollectiveCurve measured_curve(CollectiveKind kind, int ranks, std::span<const LinePoint> points) {
  CollectiveCurve curve;
  curve.kind = kind;
  curve.ranks = ranks;
  const std::vector<LinePoint> merged = merged_neighbours({points.begin(), points.end()});
  for (const Level& level : never_falling(merged)) {
    for (const double size : level.sizes) {
      curve.points.push_back({std::llround(size), level.us});
    }
  }
  return curve;
}

}  // namespace shardlens::sim
