#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/search/candidates.h"

namespace shardlens::sim {

// A local change of a plan: adjacent units that prefetch another number of units.
struct PrefetchMove {
  size_t first = 0, end = 0;  // of the units of blocks in forward order; the root is after them
  int16_t PrefetchCounts::*count = nullptr;
  int16_t value = PrefetchCounts::kAsPlan;
};

// The changes that a search tries, each in both passes: all units, their halves, quarters and so
// on down to single ones, with nothing, one, two or three units prefetched.
[[nodiscard]] std::vector<PrefetchMove> prefetch_moves(const BlockChoices& choices);

// Changes a candidate with settings of its blocks. Returns false if it prefetches as much already,
// or nothing is sharded.
bool apply(const PrefetchMove& move, Candidate& candidate);

}  // namespace shardlens::sim
