#pragma once

#include <cstdint>

namespace shardlens {

// Intervals of these are half-open everywhere: [start, end). Names in JSON end in their unit
// (`_ns`, `_us`, `_bytes`).
using Nanoseconds = int64_t;  // a point in time (CLOCK_REALTIME since the epoch) or a duration
using Bytes = int64_t;

// Position of a unit (modules that are sharded together) in the pre-order of the unit tree; the
// same on all ranks; 0 is the root.
using UnitId = uint32_t;
inline constexpr UnitId kNoUnit = 0xffffffffU;

}  // namespace shardlens
