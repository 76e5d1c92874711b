#pragma once

#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// nullptr: there is no such curve.
[[nodiscard]] const CollectiveCurve* find_curve(const std::vector<CollectiveCurve>& curves,
                                                CollectiveKind kind,
                                                int ranks);

// The same curve in which no size takes longer than a larger one: each point gets the least time of
// its size and of all larger ones. In published tables the first sizes have been measured at up to
// ten times the time of the next ones, which no message of a step takes.
[[nodiscard]] CollectiveCurve non_decreasing(CollectiveCurve curve);

// Microseconds for a message of `bytes`.
//
// [Note: Interpolation] Linear in bytes between measured sizes, since time is latency plus bytes
// over bandwidth there. Interpolating logarithms overestimates: the mean error on sizes left out of
// the H100 curves, from 1 MiB up, is 6.5 % for all-gather, and 3.5 % with linear interpolation.
//
// [Note: Outside the measured sizes] Beyond the largest size, the bandwidth between it and the
// largest size of at most half of it that took less time is used; below the smallest size, that
// between it and the next size of at least twice it. But time never grows faster than in proportion
// to bytes beyond the largest size, and never falls faster below the smallest. A curve with one
// point, and beyond its largest size one whose points all took the same time, is scaled in
// proportion.
[[nodiscard]] double curve_us(const CollectiveCurve& curve, Bytes bytes);

// The slope of curve_us() beyond the largest size, in microseconds per byte.
[[nodiscard]] double us_per_byte_beyond(const CollectiveCurve& curve);

// The size divided by the nearest measured one: 1 between the smallest and the largest size, more
// beyond the largest, less below the smallest.
[[nodiscard]] double size_beyond(const CollectiveCurve& curve, Bytes bytes);

}  // namespace shardlens::sim
