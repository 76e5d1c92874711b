#pragma once

#include <optional>
#include <vector>

namespace shardlens::sim {

struct LinePoint {  // a measurement; weight: how often it was measured
  double x = 0, y = 0, weight = 1;
};

// y = at_zero + slope · x; neither coefficient is negative.
struct Line {
  double at_zero = 0, slope = 0;
  [[nodiscard]] double at(double x) const { return at_zero + slope * x; }
};

// The line with the least sum of squared relative errors, by weight; through the origin for a
// single point. Points with y <= 0 are ignored.
[[nodiscard]] Line fit_line(const std::vector<LinePoint>& points);

// Mean relative error when each point is predicted by the line fitted to the other points; nullopt
// for fewer than three points.
[[nodiscard]] std::optional<double> left_out_error(const std::vector<LinePoint>& points);

}  // namespace shardlens::sim
