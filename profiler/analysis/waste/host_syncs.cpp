#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/waste/waste_rules.h"

namespace shardlens::analysis {
namespace {

using trace::Event;

class HostSyncs {
 public:
  HostSyncs(const WasteInput& in, FoundWaste& found) : in_(in), found_(found) {}

  // The device ran out of work because the host waited for it before launching more.
  void run() {
    if (!in_.timeline.device || in_.dependencies.host_waits().empty() ||
        in_.trace.metadata.simulated()) {
      return;
    }
    const std::map<size_t, std::string> names = wait_names();
    // Steps by start, each with the latest end of those up to it.
    std::vector<Interval> steps;
    for (const Step& step : in_.timeline.steps) {
      steps.push_back(step.host);
    }
    std::sort(steps.begin(), steps.end(),
              [](const Interval& a, const Interval& b) { return a.start < b.start; });
    for (size_t i = 1; i < steps.size(); ++i) {
      steps[i].end = std::max(steps[i].end, steps[i - 1].end);
    }
    // By launch: the last wait before it.
    std::map<std::pair<uint32_t, Nanoseconds>, size_t> before;
    const auto& waits = in_.dependencies.host_waits();  // by end
    for (size_t w = 0; w < waits.size(); ++w) {
      const std::vector<Launch>& thread = in_.launches.of(waits[w].track);
      const auto next = std::lower_bound(thread.begin(), thread.end(), waits[w].when.end,
                                         [](const Launch& l, Nanoseconds t) { return l.time < t; });
      if (next != thread.end() && in_step(steps, waits[w].when, next->time) &&
          in_.timeline.fsdp.collective_at(waits[w].track, waits[w].when.start) == nullptr) {
        before[{waits[w].track, next->time}] = w;
      }
    }
    for (const auto& [launch, w] : before) {
      const Event* first = nullptr;  // that started of what was launched then
      const std::vector<Launch>& thread = in_.launches.of(launch.first);
      for (auto it = std::lower_bound(thread.begin(), thread.end(), launch.second,
                                      [](const Launch&l, Nanoseconds t) { return l.time < t; });
           it != thread.end() && it->time == launch.second; ++it) {
        const Event& event = in_.trace.events[it->event->event];
        first = first == nullptr || event.start < first->start ? &event : first;
      }
      const Interval until{waits[w].when.start, first->start};
      if (until.length() <= 0) {
        continue;
      }
      // Only the idle time that ends with this launch.
      const Nanoseconds begin = busy_until(until);
      if (begin >= until.end || until.end <= waits[w].when.end) {
        continue;
      }
      const Nanoseconds lost = shared_length({{begin, until.end}}, in_.window);
      if (lost > 0) {
        found_.add(WasteKind::kHostSync, names.at(w), lost);
      }
    }
  }

 private:
  using Launch = ThreadLaunches::Launch;

  // Whether the wait and the next launch are in one step; without steps, anything is.
  static bool in_step(const std::vector<Interval>& steps,
                      const Interval& wait,
                      Nanoseconds launch) {
    const auto after = std::partition_point(
        steps.begin(), steps.end(), [&](const Interval& s) { return s.start <= wait.start; });
    return steps.empty() || (after != steps.begin() && launch < std::prev(after)->end);
  }

  // From when on the device had nothing to do before the end of `until`; at or after that end if it
  // was busy then.
  [[nodiscard]] Nanoseconds busy_until(const Interval& until) const {
    Nanoseconds begin = until.start;
    const Timeline& timeline = in_.timeline;
    for (const IntervalSet* busy : {&timeline.compute, &timeline.communication, &timeline.copy}) {
      const auto after = std::partition_point(
          busy->begin(), busy->end(), [&](const Interval& each) { return each.start < until.end; });
      begin = after == busy->begin() ? begin : std::max(begin, std::prev(after)->end);
    }
    return begin;
  }

  // By position in host_waits(): "cudaStreamSynchronize in aten::item".
  [[nodiscard]] std::map<size_t, std::string> wait_names() const {
    std::map<std::pair<uint32_t, Nanoseconds>, size_t> by_start;
    const auto& waits = in_.dependencies.host_waits();
    for (size_t w = 0; w < waits.size(); ++w) {
      by_start[{waits[w].track, waits[w].when.start}] = w;
    }
    std::map<size_t, std::string> out;
    in_.timeline.lists.for_calls_named(in_.trace, is_host_wait, [&](uint32_t i) {
      const Event& event = in_.trace.events[i];
      const auto found = by_start.find({event.track, event.start});
      if (found != by_start.end() && waits[found->second].when.end == event.end()) {
        out[found->second] = std::string(in_.trace.name(event));
      }
    });
    const std::map<size_t, uint32_t> around = longest_around(by_start);
    for (size_t w = 0; w < waits.size(); ++w) {
      const auto found = around.find(w);
      out[w] += found == around.end()
                    ? ""
                    : fmt::format(" in {}", in_.trace.name(in_.trace.events[found->second]));
    }
    return out;
  }

  // By wait: the longest operator around its start; of equally long ones the first in the file.
  [[nodiscard]] std::map<size_t, uint32_t> longest_around(
      const std::map<std::pair<uint32_t, Nanoseconds>, size_t>& by_start) const {
    std::vector<uint32_t> operators;
    in_.timeline.lists.for_operators_named(
        in_.trace, [](std::string_view n) { return n.starts_with("aten::"); },
        [&](uint32_t i) {
          const Event& event = in_.trace.events[i];
          const auto wait = by_start.lower_bound({event.track, event.start});
          if (event.duration > 0 && wait != by_start.end() && wait->first.first == event.track &&
              wait->first.second < event.end()) {
            operators.push_back(i);
          }
        });
    // The longest first, so that each wait is visited once.
    std::stable_sort(operators.begin(), operators.end(), [&](uint32_t a, uint32_t b) {
      return in_.trace.events[a].duration > in_.trace.events[b].duration;
    });
    auto left = by_start;
    std::map<size_t, uint32_t> around;
    for (const uint32_t i : operators) {
      const Event& event = in_.trace.events[i];
      auto it = left.lower_bound({event.track, event.start});
      while (it != left.end() && it->first.first == event.track && it->first.second < event.end()) {
        around[it->second] = i;
        it = left.erase(it);
      }
    }
    return around;
  }

  const WasteInput& in_;
  FoundWaste& found_;
};

}  // namespace

void find_host_syncs(const WasteInput& in, FoundWaste& found) {
  HostSyncs(in, found).run();
}

}  // namespace shardlens::analysis
