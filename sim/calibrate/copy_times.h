#pragma once

#include <vector>

#include "core/base/units.h"
#include "sim/calibrate/line_fit.h"

namespace shardlens::sim {

// How long the copies of an action take on a CPU, by the bytes that they read and write.
//
// [Note: Copies by size] A buffer that is larger than what the allocator keeps gets new pages each
// time, so it takes longer per byte than a small one: a chunk_cat of 12 MiB took six times as long
// as one of 7 MiB. So the time is linear between measured sizes; beyond them it is in proportion.
struct CopyTimes {
  struct Point {
    Bytes bytes = 0;
    double us = 0;
    friend bool operator==(const Point&, const Point&) = default;
  };
  std::vector<Point> points;  // by bytes, all different; empty: not measured

  [[nodiscard]] double microseconds(Bytes bytes) const;
};

// Of measured copies: x in bytes, y in microseconds. Neighbouring sizes are merged.
[[nodiscard]] CopyTimes copy_times(std::vector<LinePoint> measured);

}  // namespace shardlens::sim
