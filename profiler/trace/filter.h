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

struct Filter {
  std::optional<std::pair<int64_t, int64_t>> steps;  // first ≤ k < last, by ProfilerStep#k
  std::vector<std::string> categories;               // empty: all; ProfilerStep marks always stay
};

// What to say where no step is in `wanted`; `there`: those of the trace.
[[nodiscard]] std::string no_step(const std::pair<int64_t, int64_t>& wanted,
                                  const std::set<int64_t>& there);

// Decides for each event whether it stays. Of a chosen step, all that starts within its
// ProfilerStep stays, and device events that were launched there (by correlation), however late
// they ran.
//
// Which launches and marks there are is known only after the last event, so see() comes first, for
// every event, then keeps(). All times have the same zero. Names and categories are those of the
// trace that is passed with the event.
class EventFilter {
 public:
  explicit EventFilter(Filter filter) : filter_(std::move(filter)) {}

  void see(const Trace& trace, const Event& event);
  // Between the two. Errors: InputError naming `source` if steps are asked for and there is none of
  // them.
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
  std::set<int64_t> steps_;      // of the trace
  std::vector<Window> windows_;  // sorted and apart after decide()
  GrowingArray<Launch> launches_;
  std::unordered_set<uint32_t> launched_;
};

// Removes events of a trace in memory. Side tables keep entries that no event refers to any more.
// Errors: as EventFilter::decide().
EventFilter apply(Filter filter, Trace& trace);

}  // namespace shardlens::trace
