#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Complete events for which wanted(event) holds, track by track in order of start; of those that
// start at once, the longest first.
template <class Wanted>
[[nodiscard]] std::vector<uint32_t> by_track_and_start(const trace::Trace& trace, Wanted wanted) {
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].phase == trace::Phase::kComplete && wanted(trace.events[i])) {
      order.push_back(i);
    }
  }
  const auto before = [&](uint32_t a, uint32_t b) {
    const trace::Event &x = trace.events[a], &y = trace.events[b];
    if (x.track != y.track) {
      return x.track < y.track;
    }
    if (x.start != y.start) {
      return x.start < y.start;
    }
    return x.duration != y.duration ? x.duration > y.duration : a < b;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) {
    std::sort(order.begin(), order.end(), before);
  }
  return order;
}

// Ranges of the host, each within the one around it. A range that overruns the one around it is
// taken as open until its own end.
class RangeFinder {
 public:
  template <class Wanted>
  RangeFinder(const trace::Trace& trace, Wanted wanted)
      : RangeFinder(trace, by_track_and_start(trace, wanted)) {}

  // Innermost range of `track` that contains `instant`, and those around it; empty if there is
  // none.
  [[nodiscard]] std::vector<uint32_t> around(uint32_t track, Nanoseconds instant) const;
  // Whether around() would find anything.
  [[nodiscard]] bool any_around(uint32_t track, Nanoseconds instant) const;

 private:
  struct Node {
    uint32_t event;
    int32_t parent;  // within the track; -1: none
  };
  RangeFinder(const trace::Trace& trace, const std::vector<uint32_t>& order);
  template <class Visit>  // visit(event) → whether to go on outwards
  void visit_around(uint32_t track, Nanoseconds instant, Visit visit) const;

  const trace::Trace& trace_;
  std::vector<std::vector<Node>> tracks_;  // by start
};

}  // namespace shardlens::analysis
