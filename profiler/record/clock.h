#pragma once

#include <ctime>

#include "core/base/units.h"

namespace shardlens::record {

// CLOCK_REALTIME through the vDSO (about 20 ns): shared by all ranks of a node and by CUPTI, so
// that ranks merge without a calibration. It follows NTP's corrections; a step of the clock during
// a run shows as a gap or an overlap.
inline Nanoseconds now_ns() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  return Nanoseconds{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace shardlens::record
