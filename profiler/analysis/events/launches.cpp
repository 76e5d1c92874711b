#include "profiler/analysis/events/launches.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace shardlens::analysis {
namespace {

// Correlations increase with time, so neighbours in time become neighbours in memory, but only so
// many: otherwise one from elsewhere, such as the only launch of a CUDA graph's kernels, could fall
// into a long row of taken slots, which each look-up then passes.
size_t slot_of(uint32_t correlation, size_t slots) {
  constexpr uint32_t kGoldenRatio = 0x9E3779B1U, kNeighbours = 16;
  const uint64_t spread = correlation / kNeighbours * kGoldenRatio;  // modulo 2^32
  const size_t row = (spread * slots >> 32) / kNeighbours * kNeighbours;
  return (row + correlation % kNeighbours) & (slots - 1);
}

}  // namespace

LaunchIndex::LaunchIndex(const std::vector<Call>& calls) : calls_(calls) {
  size_t launches = 0;
  uint32_t last = 0;
  first_ = std::numeric_limits<uint32_t>::max();
  for (const Call& call : calls) {
    if (call.correlation != 0) {
      ++launches;
      first_ = std::min(first_, call.correlation);
      last = std::max(last, call.correlation);
    }
  }
  constexpr size_t kPlacesPerLaunch = 3;
  direct_ = launches > 0 && last - first_ < kPlacesPerLaunch * launches;
  slots_.assign(direct_ ? size_t{last - first_} + 1 : std::bit_ceil(launches + launches / 2 + 1),
                trace::kNoIndex);
  for (uint32_t i = 0; i < calls.size(); ++i) {
    const uint32_t correlation = calls[i].correlation;
    if (correlation == 0) {
      continue;
    }
    size_t slot = direct_ ? correlation - first_ : slot_of(correlation, slots_.size());
    while (!direct_ && slots_[slot] != trace::kNoIndex &&
           calls[slots_[slot]].correlation != correlation) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    if (slots_[slot] == trace::kNoIndex) {
      slots_[slot] = i;
    }
  }
}

const LaunchIndex::Call* LaunchIndex::find(uint32_t correlation) const {
  if (correlation == 0) {
    return nullptr;
  }
  const auto at = [&](uint32_t position) {
    return position == trace::kNoIndex ? nullptr : &calls_[position];
  };
  if (direct_) {
    const size_t place = size_t{correlation} - first_;
    return correlation >= first_ && place < slots_.size() ? at(slots_[place]) : nullptr;
  }
  size_t slot = slot_of(correlation, slots_.size());
  while (slots_[slot] != trace::kNoIndex && calls_[slots_[slot]].correlation != correlation) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return at(slots_[slot]);
}

uint32_t LaunchIndex::of(uint32_t correlation) const {
  const Call* call = find(correlation);
  return call == nullptr ? trace::kNoIndex : call->event;
}

}  // namespace shardlens::analysis
