#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "sim/memory/memory_outline.h"

namespace shardlens::sim {

// Adds the points of items that a replay passes over, from microbatch `first` up to item `next`:
// those of the item one microbatch before, or `unchanged`.
template <typename Point>
void note_passed(const MemoryOutline& outline,
                 size_t first,
                 size_t next,
                 const Point& unchanged,
                 std::vector<Point>& points) {
  const size_t begin = outline.microbatches[first];
  const size_t length = first == 0 ? 0 : begin - outline.microbatches[first - 1];
  for (size_t at = begin; at < next; ++at) {
    const size_t within = (at - begin) % std::max<size_t>(1, length);
    const bool repeats = at - begin < length * (outline.microbatches.size() - first);
    points.push_back(repeats ? Point(points[begin - length + within]) : unchanged);
  }
}

}  // namespace shardlens::sim
