#pragma once

#include <ctime>

#include "core/base/units.h"

namespace shardlens::record {

// CLOCK_REALTIME through the vDSO (about 20 ns). All ranks of a node and CUPTI use the same clock,
// so traces of ranks can be merged without calibration. NTP adjusts this clock; a step of the clock
// during a run is visible as a gap or an overlap.
inline Nanoseconds now_ns() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  return Nanoseconds{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace shardlens::record
