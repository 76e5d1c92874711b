#include "profiler/analysis/events/launches.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace shardlens::analysis {
namespace {

// Correlations increase with time, so neighbours in time become neighbours in memory. The upper
// bits are spread, so that correlations with a stride do not all fall into one slot.
size_t slot_of(uint32_t correlation, size_t slots) {
  constexpr uint32_t kGoldenRatio = 0x9E3779B1U;
  return (correlation + (correlation >> 12) * kGoldenRatio) & (slots - 1);
}

}  // namespace

LaunchIndex::LaunchIndex(const trace::Trace& trace, const std::vector<uint32_t>& calls)
    : trace_(trace) {
  std::vector<uint32_t> correlations;
  correlations.reserve(calls.size());
  size_t launches = 0;
  uint32_t last = 0;
  first_ = std::numeric_limits<uint32_t>::max();
  for (const uint32_t i : calls) {
    const uint32_t correlation = trace.events[i].correlation;
    correlations.push_back(correlation);
    if (correlation != 0) {
      ++launches;
      first_ = std::min(first_, correlation);
      last = std::max(last, correlation);
    }
  }
  constexpr size_t kPlacesPerLaunch = 3;
  direct_ = launches > 0 && last - first_ < kPlacesPerLaunch * launches;
  slots_.assign(direct_ ? size_t{last - first_} + 1 : std::bit_ceil(launches + launches / 2 + 1),
                trace::kNoIndex);
  for (size_t i = 0; i < calls.size(); ++i) {
    const uint32_t correlation = correlations[i];
    if (correlation == 0) {
      continue;
    }
    size_t slot = direct_ ? correlation - first_ : slot_of(correlation, slots_.size());
    while (!direct_ && slots_[slot] != trace::kNoIndex &&
           trace.events[slots_[slot]].correlation != correlation) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    if (slots_[slot] == trace::kNoIndex) {
      slots_[slot] = calls[i];
    }
  }
}

uint32_t LaunchIndex::of(uint32_t correlation) const {
  if (correlation == 0) {
    return trace::kNoIndex;
  }
  if (direct_) {
    const size_t place = size_t{correlation} - first_;
    return correlation >= first_ && place < slots_.size() ? slots_[place] : trace::kNoIndex;
  }
  size_t slot = slot_of(correlation, slots_.size());
  while (slots_[slot] != trace::kNoIndex &&
         trace_.events[slots_[slot]].correlation != correlation) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slots_[slot];
}

}  // namespace shardlens::analysis
