#pragma once

#include <cstdint>

namespace shardlens {

// Half-open intervals [start, end) of these are used everywhere; JSON edges name their unit (`_ns`,
// `_us`, `_bytes`).
using Nanoseconds = int64_t;  // CLOCK_REALTIME since the epoch for points in time, or a duration
using Bytes = int64_t;

// Position of a unit (modules sharded together) in the pre-order of the unit tree; equal on all
// ranks; 0 is the root.
using UnitId = uint32_t;
inline constexpr UnitId kNoUnit = 0xffffffffU;

}  // namespace shardlens
