#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/analysis/events/event_lists.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Sorts events track by track in order of start; of events with the same start, the longest first.
void sort_by_track_and_start(const trace::Trace& trace, std::vector<uint32_t>& order);

// Complete events for which wanted(event) is true, sorted like this.
template <class Wanted>
[[nodiscard]] std::vector<uint32_t> by_track_and_start(const trace::Trace& trace, Wanted wanted) {
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].phase == trace::EventPhase::kComplete && wanted(trace.events[i])) {
      order.push_back(i);
    }
  }
  sort_by_track_and_start(trace, order);
  return order;
}

// The same of the events `among`, which are complete.
template <class Wanted>
[[nodiscard]] std::vector<uint32_t> by_track_and_start(const trace::Trace& trace,
                                                       const std::vector<uint32_t>& among,
                                                       Wanted wanted) {
  std::vector<uint32_t> order;
  for (const uint32_t i : among) {
    if (wanted(trace.events[i])) {
      order.push_back(i);
    }
  }
  sort_by_track_and_start(trace, order);
  return order;
}

// Finds the nested ranges of the host around an instant. A range that ends after the range around
// it is treated as open until its own end.
//
// Complexity  O(log n) per search, however deep the ranges nest.
class RangeFinder {
 public:
  template <class Wanted>
  RangeFinder(const trace::Trace& trace, Wanted wanted)
      : RangeFinder(trace, by_track_and_start(trace, wanted)) {}
  // Finds ranges among the events `among`, which are complete.
  template <class Wanted>
  RangeFinder(const trace::Trace& trace, const std::vector<uint32_t>& among, Wanted wanted)
      : RangeFinder(trace, by_track_and_start(trace, among, wanted)) {}

  // Finds ranges among events that are sorted as by sort_by_track_and_start().
  RangeFinder(const trace::Trace& trace, const std::vector<uint32_t>& order);
  RangeFinder(const trace::Trace& trace, const std::vector<EventLists::Range>& order);

  // The innermost range of `track` that contains `instant`.
  [[nodiscard]] std::optional<uint32_t> innermost(uint32_t track, Nanoseconds instant) const;
  // The same; `near`: a place that is kept from one search to the next, which is fast if the
  // instants are near.
  [[nodiscard]] std::optional<uint32_t> innermost(uint32_t track,
                                                  Nanoseconds instant,
                                                  size_t& near) const;
  [[nodiscard]] bool any_around(uint32_t track, Nanoseconds instant) const {
    return innermost(track, instant).has_value();
  }

 private:
  // Positions are within the track; -1: none.
  struct Node {
    uint32_t event;
    int32_t parent, depth;
    int32_t far;             // a range further out
    Nanoseconds start, end;  // of the event
    Nanoseconds latest_end;  // of this range and those around it, up to `far`, without `far`
  };
  static Node node(const EventLists::Range& range, const std::vector<Node>& nodes, int32_t parent);
  // Adds the ranges range_at(0) to range_at(size - 1).
  template <class RangeAt>
  void add(size_t size, RangeAt range_at);

  std::vector<std::vector<Node>> tracks_;  // by start
};

}  // namespace shardlens::analysis
