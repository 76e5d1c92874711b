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

// Microseconds for a message of `bytes`.
//
// [Note: Interpolation] Linear in bytes between measured sizes, since time is latency plus bytes
// over bandwidth there. Interpolating logarithms overestimates: the mean error on sizes left out of
// the H100 curves, from 1 MiB up, is 6.5 % for all-gather, and 3.5 % with linear interpolation.
// Below the smallest size its time is used. Beyond the largest size, the bandwidth between it and
// the largest size that took less time is used. A curve with one point, and beyond its largest size
// one whose points all took the same time, is scaled in proportion to bytes.
[[nodiscard]] double curve_us(const CollectiveCurve& curve, Bytes bytes);

}  // namespace shardlens::sim
