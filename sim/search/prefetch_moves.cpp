#include "sim/search/prefetch_moves.h"

#include <algorithm>

namespace shardlens::sim {
namespace {

constexpr int16_t kMostPrefetched = 3;

}  // namespace

std::vector<PrefetchMove> prefetch_moves(const BlockChoices& choices) {
  const auto units = static_cast<size_t>(std::count_if(
      choices.begin(), choices.end(), [](const BlockChoice& each) { return each.starts; }));
  const size_t all = units + 1;  // with the root
  std::vector<PrefetchMove> out;
  for (size_t width = all;; width = (width + 1) / 2) {
    for (size_t first = 0; first < all; first += width) {
      for (const auto count : {&PrefetchCounts::backward, &PrefetchCounts::forward}) {
        for (int16_t value = 0; value <= kMostPrefetched; ++value) {
          out.push_back({first, std::min(all, first + width), count, value});
        }
      }
    }
    if (width == 1) {
      return out;
    }
  }
}

bool apply(const PrefetchMove& move, Candidate& candidate) {
  if (!gathers(candidate)) {
    return false;
  }
  const int64_t usual = move.count == &PrefetchCounts::forward ? candidate.forward_prefetch : 1;
  const int16_t value = move.value == usual ? PrefetchCounts::kAsPlan : move.value;
  bool changed = false;
  const auto set = [&](PrefetchCounts& counts) {
    changed = changed || counts.*move.count != value;
    counts.*move.count = value;
  };
  size_t unit = 0;
  for (BlockChoice& each : candidate.blocks) {
    if (each.starts) {
      if (unit >= move.first && unit < move.end) {
        set(each.prefetch);
      }
      ++unit;
    }
  }
  if (unit < move.end) {
    set(candidate.root_prefetch);
  }
  return changed;
}

}  // namespace shardlens::sim
