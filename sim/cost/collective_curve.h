#pragma once

#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// nullptr: there is none.
[[nodiscard]] const CollectiveCurve* find_curve(const std::vector<CollectiveCurve>& curves,
                                                CollectiveKind kind,
                                                int ranks);

// Microseconds of a message of so many bytes.
//
// [Note: Interpolation] Linear in bytes between measured sizes, since time is latency plus bytes
// over bandwidth there; a straight line through logarithms overshoots (mean error on sizes left out
// of the H100 curves, from 1 MiB up: 3.5 % for all-gather against 6.5 %). Below the smallest size
// its time holds, beyond the largest the bandwidth between it and the last that took less; one
// point alone is taken in proportion, and so are points that all took the same beyond them.
[[nodiscard]] double curve_us(const CollectiveCurve& curve, Bytes bytes);

}  // namespace shardlens::sim
