#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/units.h"
#include "profiler/trace/model/growing_array.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

struct Filter {                                      // what is kept of a trace
  std::optional<std::pair<int64_t, int64_t>> steps;  // steps ProfilerStep#k with first ≤ k < last
  std::vector<std::string> categories;  // empty: all; ProfilerStep events are always kept
};

// The message for the case that no step is in `wanted`; `there`: the steps of the trace.
[[nodiscard]] std::string no_step(const std::pair<int64_t, int64_t>& wanted,
                                  const std::set<int64_t>& there);

// Decides for each event whether it is kept. Of a chosen step, all events that start within its
// ProfilerStep are kept. Device events are kept if they were launched within it (by correlation),
// however late they ran.
//
// Launches and ProfilerStep events are known only after the last event, so call see() for every
// event first, then decide(), then keeps(). All times must have the same zero. Names and categories
// are those of the trace that is passed with the event.
class EventFilter {
 public:
  explicit EventFilter(Filter filter) : filter_(std::move(filter)) {}

  void see(const Trace& trace, const Event& event);
  // Call once after the last see() and before the first keeps(). Errors: InputError naming `source`
  // if steps are chosen and the trace has none of them.
  void decide(const std::string& source);
  [[nodiscard]] bool keeps(const Trace& trace, const Event& event) const;

  [[nodiscard]] const std::set<std::string, std::less<>>& categories() const { return seen_; }

 private:
  using Window = std::pair<Nanoseconds, Nanoseconds>;
  struct Launch {
    Nanoseconds start;
    uint32_t correlation;
  };
  [[nodiscard]] bool within(Nanoseconds time) const;

  Filter filter_;
  std::set<std::string, std::less<>> seen_;
  std::set<int64_t> steps_;      // steps of the trace
  std::vector<Window> windows_;  // sorted and disjoint after decide()
  GrowingArray<Launch> launches_;
  std::unordered_set<uint32_t> launched_;
};

// Removes the events of `trace` that the filter does not keep. Side tables keep rows that no event
// refers to any more. Errors: as EventFilter::decide().
EventFilter apply(Filter filter, Trace& trace);

}  // namespace shardlens::trace
