#pragma once

#include <span>
#include <vector>

#include "core/base/collective.h"
#include "sim/calibrate/line_fit.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// Sizes x that differ by less than this factor are one size: noise, not the difference of such
// sizes, decides how their times differ, so they would give any slope.
inline constexpr double kNeighbours = 1.1;

// The points by x, with neighbours combined into one point: x is the mean, y the interquartile
// mean, both by weight, and weight is the sum. Combined points are no neighbours either, so a
// second call changes nothing.
[[nodiscard]] std::vector<LinePoint> merged_neighbours(std::vector<LinePoint> points);

// The curve of measured times: x in bytes, y in microseconds. Neighbours are merged, and a larger
// message never takes less time: adjacent sizes whose times decrease get their common mean, which
// keeps the total time of all samples.
// Source: pool adjacent violators, Ayer et al., Ann. Math. Statist. 26 (1955).
[[nodiscard]] CollectiveCurve measured_curve(CollectiveKind kind,
                                             int ranks,
                                             std::span<const LinePoint> points);

}  // namespace shardlens::sim
