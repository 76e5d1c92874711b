#pragma once

#include <vector>

#include "core/base/units.h"
#include "sim/calibrate/line_fit.h"

namespace shardlens::sim {

// How long the copies of an action take on a CPU, by the bytes that they read and write.
//
// [Note: Copies by size] Buffers of the largest size tend to get new pages, because the allocator
// returns what is free at the end of the heap, and take longer per byte than smaller ones: a
// chunk_cat of 12 MiB took six times as long as one of 7 MiB, in a step with as many page faults as
// such a buffer has pages. With units merged to 13.5 MiB it was theirs that took long, and that of
// 12 MiB an eighth of before. So if the largest measured size is dearer per byte than the next one,
// it says what copies of a plan's largest unit take, in proportion to bytes, and the others what
// those of all other units take: linear between measured sizes, in proportion beyond them.
// Source: getrusage(2) on two Gloo ranks; mallopt(3), M_TRIM_THRESHOLD.
struct CopyTimes {
  struct Point {
    Bytes bytes = 0;
    double us = 0;
    friend bool operator==(const Point&, const Point&) = default;
  };
  std::vector<Point> points;  // by bytes, all different; empty: not measured

  // `largest`: of the plan's largest unit.
  [[nodiscard]] double microseconds(Bytes bytes, bool largest) const;
};

// Of measured copies: x in bytes, y in microseconds. Neighbouring sizes are merged.
[[nodiscard]] CopyTimes copy_times(std::vector<LinePoint> measured);

}  // namespace shardlens::sim
