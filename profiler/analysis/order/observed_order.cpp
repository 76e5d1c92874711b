#include "profiler/analysis/order/observed_order.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "profiler/analysis/events/names.h"

namespace shardlens::analysis {
namespace {

struct MarkedStep {
  Nanoseconds start, end;
  int64_t number;
};

std::vector<MarkedStep> marked_steps(const trace::Trace& trace, const EventLists& lists) {
  std::vector<MarkedStep> marks;
  const auto is_step = [](std::string_view name) { return parse_profiler_step(name).has_value(); };
  lists.for_annotations_named(trace, is_step, [&](uint32_t i) {
    const trace::Event& event = trace.events[i];
    marks.push_back({event.start, event.end(), *parse_profiler_step(trace.name(event))});
  });
  std::sort(marks.begin(), marks.end(),
            [](const MarkedStep& a, const MarkedStep& b) { return a.start < b.start; });
  return marks;
}

size_t hash_of(const std::vector<ObservedEvent>& events) {
  size_t hash = events.size();
  const auto add = [&](size_t value) {
    constexpr size_t kGoldenRatio = 0x9E3779B97F4A7C15U;
    hash ^= value + kGoldenRatio + (hash << 6) + (hash >> 2);
  };
  for (const ObservedEvent& each : events) {
    add(each.unit);
    add(each.hook_unit);
    add(static_cast<size_t>(each.what) * 8 + static_cast<size_t>(each.by) * 2 +
        (each.backward ? 1 : 0));
  }
  return hash;
}

}  // namespace

std::vector<ObservedOrder> observed_orders(const trace::Trace& trace,
                                           const EventLists& lists,
                                           const FsdpLog& log) {
  const std::vector<MarkedStep> marks = marked_steps(trace, lists);
  // (pass, unit) of units that were gathered for backward, so their forward freed them.
  std::vector<std::pair<uint32_t, uint32_t>> gathered_again;
  for (const FsdpEvent& e : log.events) {
    if (e.call == FsdpCall::kUnshard && e.backward) {
      gathered_again.emplace_back(e.pass, e.unit);
    }
  }
  std::sort(gathered_again.begin(), gathered_again.end());
  std::map<int64_t, std::vector<ObservedEvent>> steps;
  for (const FsdpEvent& e : log.events) {
    int64_t step = e.pass;
    if (!marks.empty()) {
      const auto after =
          std::upper_bound(marks.begin(), marks.end(), e.when.start,
                           [](Nanoseconds t, const MarkedStep& m) { return t < m.start; });
      if (after == marks.begin() || e.when.start >= std::prev(after)->end) {
        continue;
      }
      step = std::prev(after)->number;
    }
    std::optional<ObservedEvent::What> what;
    if (e.call == FsdpCall::kUnshard) {
      what = ObservedEvent::What::kUnshard;
    } else if (e.call == FsdpCall::kReduce) {
      what = ObservedEvent::What::kReduce;
    } else if (e.call == FsdpCall::kPostBackward ||
               (e.call == FsdpCall::kPostForward && !e.backward &&
                std::binary_search(gathered_again.begin(), gathered_again.end(),
                                   std::pair(e.pass, e.unit)))) {
      what = ObservedEvent::What::kReshard;
    }
    if (what) {
      const bool unshards = *what == ObservedEvent::What::kUnshard;
      steps[step].push_back(
          {*what, e.backward, e.unit, unshards ? e.hook_unit : e.unit, e.unshard_by});
    }
  }
  std::vector<ObservedOrder> orders;
  std::unordered_multimap<size_t, size_t> known;  // hash → index in `orders`
  for (auto& [step, events] : steps) {
    const size_t hash = hash_of(events);
    const auto [first, last] = known.equal_range(hash);
    const auto same = std::find_if(first, last, [&orders, &seen = events](const auto& each) {
      return orders[each.second].events == seen;
    });
    if (same == last) {
      known.emplace(hash, orders.size());
      orders.push_back({{step}, std::move(events)});
    } else {
      orders[same->second].steps.push_back(step);
    }
  }
  return orders;
}

std::string_view name_of(ObservedEvent::What what) {
  constexpr std::string_view kNames[] = {"unshard", "reshard", "reduce"};
  return kNames[static_cast<size_t>(what)];
}

std::string_view name_of(UnshardBy by) {
  constexpr std::string_view kNames[] = {"own", "forward_prefetch", "backward_prefetch",
                                         "explicit_prefetch"};
  return kNames[static_cast<size_t>(by)];
}

}  // namespace shardlens::analysis
