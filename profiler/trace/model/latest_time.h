#pragma once

#include "core/base/units.h"

namespace shardlens::trace {

// Times of events are at most this (the year 2043) and at least minus this, and the durations of a
// file add up to no more. So differences of times, and sums of durations, fit in 64 bits.
inline constexpr Nanoseconds kLatestTime = Nanoseconds{1} << 61;

}  // namespace shardlens::trace
