#pragma once

#include <optional>
#include <vector>

namespace shardlens::sim {

struct LinePoint {
  double x = 0, y = 0;
};

// y = at_zero + slope · x, neither negative.
struct Line {
  double at_zero = 0, slope = 0;
  [[nodiscard]] double at(double x) const { return at_zero + slope * x; }
};

// The line with the least sum of squared relative errors; one point: in proportion. Points of
// y <= 0 do not count.
[[nodiscard]] Line fit_line(const std::vector<LinePoint>& points);

// Mean relative error of each point on the line through the others; nullopt for fewer than three.
[[nodiscard]] std::optional<double> left_out_error(const std::vector<LinePoint>& points);

}  // namespace shardlens::sim
