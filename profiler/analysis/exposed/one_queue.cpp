#include "profiler/analysis/exposed/one_queue.h"

#include <algorithm>

#include "profiler/analysis/events/intervals.h"

namespace shardlens::analysis {
namespace {

// An event of the next queue entry starts at most so long after the one before it.
constexpr Nanoseconds kNextEntry = 20'000;
// Fewer held events may be chance, and so may compute during one part in this many of the
// communication.
constexpr int64_t kFewestHeld = 3;
constexpr Nanoseconds kNegligible = 1000;
// Of the collectives of units, at least one in this many held an event up.
constexpr int64_t kOneIn = 4;

}  // namespace

OneQueue::OneQueue(const Timeline& timeline,
                   const Dependencies& dependencies,
                   const std::vector<uint32_t>& device_of)
    : timeline_(timeline), dependencies_(dependencies), held_(timeline.collectives.size()) {
  const Nanoseconds communication = length_of(timeline.communication);
  if (shared_length(timeline.compute, timeline.communication) > communication / kNegligible) {
    return;
  }
  int64_t of_units = 0, holding = 0;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (timeline.collectives[i].unit && device_of[i] != trace::kNoIndex) {
      held_[i] = held(i, device_of[i]);
      ++of_units;
      holding += held_[i] ? 1 : 0;
    }
  }
  found_ = holding >= kFewestHeld && holding * kOneIn >= of_units;
}

std::optional<uint32_t> OneQueue::held_by(size_t i) const {
  return found_ ? held_[i] : std::nullopt;
}

// Nothing waits for a reduction in the units that follow it, and nothing of another unit for an
// all-gather. Nodes of one graph wait for each other as the graph says, which no trace shows.
std::optional<uint32_t> OneQueue::held(size_t i, uint32_t own) const {
  const Collective& c = timeline_.collectives[i];
  const auto& events = timeline_.device_events;
  const bool reduces = c.part == UnitPart::kReduceScatter || c.part == UnitPart::kAllReduce;
  const bool gathers =
      c.part == UnitPart::kAllGatherForward || c.part == UnitPart::kAllGatherBackward;
  if (!reduces && !gathers) {
    return std::nullopt;
  }
  const Nanoseconds middle = c.when.start + c.when.length() / 2;
  auto at = std::partition_point(events.begin(), events.end(),
                                 [&](const DeviceEvent& e) { return e.when.start < c.when.end; });
  for (; at != events.end() && at->when.start <= c.when.end + kNextEntry; ++at) {
    const auto k = static_cast<uint32_t>(at - events.begin());
    const Place& place = timeline_.place(*at);
    const bool independent =
        reduces || (place.owner.unit != kNoUnit && place.owner.unit != *c.unit);
    if (at->nature == Nature::kCommunication || place.track == c.track || !independent ||
        at->launch == trace::kNoIndex || at->launch == events[own].launch ||
        at->launched > middle) {
      continue;
    }
    const uint32_t before = dependencies_.before_in_stream(k), waited = dependencies_.waited_for(k);
    const bool free = before == Dependencies::kNone || events[before].when.end <= middle;
    const bool waits = waited != Dependencies::kNone && events[waited].when.end > middle;
    if (free && !waits) {
      return k;
    }
  }
  return std::nullopt;
}

}  // namespace shardlens::analysis
