#include "profiler/analysis/order/order_checks.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/schedule/collective_of.h"
#include "core/schedule/planned/planned.h"
#include "profiler/analysis/events/action_index.h"
#include "profiler/analysis/timeline/communicator_of.h"

namespace shardlens::analysis {
namespace {

// Only gathers are prefetched.
std::optional<bool> prefetched(CollectiveKind kind, schedule::Cause cause) {
  if (kind != CollectiveKind::kAllGather) {
    return std::nullopt;
  }
  return cause == schedule::Cause::kForwardPrefetch ||
         cause == schedule::Cause::kBackwardPrefetch || cause == schedule::Cause::kExplicitPrefetch;
}

// The planned collectives of the n-th step (from 1); from the third step on they are the same.
class Planner {
 public:
  explicit Planner(const trace::PlannedInputs* inputs) : inputs_(inputs) {}

  const std::vector<OrderEntry>& step(int64_t number) {
    const int n = static_cast<int>(std::clamp<int64_t>(number, 1, 3));
    const auto [it, fresh] = steps_.try_emplace(n);
    if (fresh && inputs_ != nullptr && !inputs_->workload.order.empty()) {
      const schedule::PlannedStep planned =
          schedule::planned_step(inputs_->workload, inputs_->plan, n, inputs_->settings);
      for (const schedule::PlannedAction& each : planned.actions) {
        const auto kind = schedule::collective_of(each.action.op);
        if (kind && each.action.unit < planned.unit_names.size()) {
          it->second.push_back(
              {*kind, planned.unit_names[each.action.unit], prefetched(*kind, each.action.cause)});
        }
      }
    }
    return it->second;
  }

 private:
  const trace::PlannedInputs* inputs_;
  std::map<int, std::vector<OrderEntry>> steps_;
};

std::vector<CountDifference> count_differences(const std::vector<OrderEntry>& expected,
                                               const std::vector<OrderEntry>& found) {
  std::vector<CountDifference> counts;
  std::map<std::pair<CollectiveKind, std::string>, size_t> place;
  const auto add = [&](const OrderEntry& entry, int64_t CountDifference::*count) {
    const auto [at, fresh] = place.try_emplace({entry.kind, entry.unit}, counts.size());
    if (fresh) {
      counts.push_back({entry, 0, 0});
    }
    ++(counts[at->second].*count);
  };
  for (const OrderEntry& entry : expected) {
    add(entry, &CountDifference::expected);
  }
  for (const OrderEntry& entry : found) {
    add(entry, &CountDifference::found);
  }
  std::erase_if(counts, [](const CountDifference& c) { return c.expected == c.found; });
  return counts;
}

void compare(int64_t step,
             const std::vector<OrderEntry>& expected,
             const std::vector<OrderEntry>& found,
             OrderCheck& check) {
  if (expected.empty() || found.empty()) {
    return;
  }
  const size_t both = std::min(expected.size(), found.size());
  check.compared += static_cast<int64_t>(both);
  if (check.first_difference) {
    return;
  }
  size_t i = 0;
  while (i < both && same_issue(expected[i], found[i])) {
    ++i;
  }
  if (i < expected.size() || i < found.size()) {
    check.first_difference = {step, static_cast<int64_t>(i),
                              i < expected.size() ? std::optional(expected[i]) : std::nullopt,
                              i < found.size() ? std::optional(found[i]) : std::nullopt,
                              count_differences(expected, found)};
  }
}

// The step of the timeline in which the host is at `time`.
std::optional<size_t> step_at(const Timeline& timeline, Nanoseconds time) {
  const auto after =
      std::partition_point(timeline.steps.begin(), timeline.steps.end(),
                           [&](const Step& step) { return step.host.start <= time; });
  if (after == timeline.steps.begin() || time >= std::prev(after)->host.end) {
    return std::nullopt;
  }
  return static_cast<size_t>(after - timeline.steps.begin()) - 1;
}

// Collectives by the instant of the host's call, to find those that a recorded action issued.
class CalledCollectives {
 public:
  CalledCollectives(const trace::Trace& trace, const Timeline& timeline) {
    if (trace.recorded_actions.empty()) {
      return;
    }
    for (const Collective& c : timeline.collectives) {
      if (c.issuer != trace::kNoIndex) {
        calls_.emplace_back(trace.events[c.issuer].start, &c);
      }
    }
    std::stable_sort(calls_.begin(), calls_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
  }

  // The first for the purpose of FSDP's collectives of this kind that was called during the action;
  // nullptr if there is none.
  [[nodiscard]] const Collective* within(const trace::RecordedAction& action,
                                         CollectiveKind kind) const {
    auto it = std::partition_point(calls_.begin(), calls_.end(),
                                   [&](const auto& call) { return call.first < action.start; });
    for (; it != calls_.end() && it->first < action.end; ++it) {
      if (it->second->purpose == sharding_purpose(kind)) {
        return it->second;
      }
    }
    return nullptr;
  }

 private:
  std::vector<std::pair<Nanoseconds, const Collective*>> calls_;
};

std::string words_of(const std::optional<OrderEntry>& entry,
                     const std::optional<OrderEntry>& other) {
  if (!entry) {
    return "nothing more";
  }
  const bool differs = other && *entry == *other && !same_issue(*entry, *other);
  return to_string(*entry) + (!differs             ? ""
                              : *entry->prefetched ? " as a prefetch"
                                                   : " by the unit's own hook");
}

using Started = std::pair<const Collective*, OrderEntry>;

// The collectives of each communicator in the order in which they started, in the places that this
// communicator's collectives have in `issued`: communicators run at the same time, so only the
// order within each is compared.
std::vector<OrderEntry> as_started(const trace::Trace& trace, const std::vector<Started>& issued) {
  std::map<CommunicatorKey, std::vector<size_t>> places;
  for (size_t i = 0; i < issued.size(); ++i) {
    places[communicator_of(trace, *issued[i].first)].push_back(i);
  }
  std::vector<OrderEntry> out(issued.size());
  for (const auto& [key, of_one] : places) {
    std::vector<size_t> by_start = of_one;
    std::stable_sort(by_start.begin(), by_start.end(), [&issued](size_t a, size_t b) {
      return issued[a].first->when.start < issued[b].first->when.start;
    });
    for (size_t i = 0; i < of_one.size(); ++i) {
      out[of_one[i]] = issued[by_start[i]].second;
    }
  }
  return out;
}

}  // namespace

std::string to_string(const OrderEntry& entry) {
  return fmt::format("{} ({})", name_of(entry.kind), entry.unit.empty() ? "root" : entry.unit);
}

bool same_issue(const OrderEntry& a, const OrderEntry& b) {
  return a == b && (!a.prefetched || !b.prefetched || a.prefetched == b.prefetched);
}

std::string Difference::expected_words() const {
  return words_of(expected, found);
}

std::string Difference::found_words() const {
  return words_of(found, expected);
}

std::vector<StepOrder> step_orders(const trace::Trace& trace,
                                   const Timeline& timeline,
                                   const trace::PlannedInputs* planned,
                                   std::vector<trace::Diagnostic>& diagnostics) {
  const ActionIndex index(trace);
  std::unordered_map<uint32_t, const Collective*> by_action;
  for (const Collective& c : timeline.collectives) {
    if (c.action != 0) {
      by_action.emplace(c.action, &c);
    }
  }
  Planner planner(planned);
  std::vector<StepOrder> out;
  std::vector<std::vector<Started>> started(timeline.steps.size());
  for (const Step& step : timeline.steps) {
    StepOrder& order = out.emplace_back();
    order.step = step.number;
    if (planned != nullptr) {
      try {
        order.planned = planner.step(step.number + 1);
      } catch (const Error& error) {
        trace::add_diagnostic(diagnostics, trace::Severity::kWarning,
                              fmt::format("the planned order is not known: {}", error.what()));
        planned = nullptr;
      }
    }
  }
  for (const ActionIndex::Entry& entry : index.actions()) {
    const auto kind = schedule::collective_of(entry.args->action.op);
    const auto step = step_at(timeline, entry.time);
    if (!kind || !step || entry.args->action.unit >= trace.units.size()) {
      continue;
    }
    StepOrder& order = out[*step];
    order.issued.push_back(
        {*kind, trace.units[entry.args->action.unit], prefetched(*kind, entry.args->action.cause)});
    if (const auto ran = by_action.find(entry.seq); ran != by_action.end()) {
      const Collective& c = *ran->second;
      const bool named = c.unit && *c.unit < trace.units.size();
      started[*step].emplace_back(
          &c, OrderEntry{c.kind.value_or(*kind),
                         named ? trace.units[*c.unit] : order.issued.back().unit});
    }
  }
  const CalledCollectives called(trace, timeline);
  for (const trace::RecordedAction& action : trace.recorded_actions) {
    const auto kind = schedule::collective_of(action.op);
    const auto step = step_at(timeline, action.start);
    if (!kind || !step) {
      continue;
    }
    out[*step].issued.push_back({*kind, action.unit, prefetched(*kind, action.cause)});
    if (const Collective* c = called.within(action, *kind)) {
      const bool named = c->unit && *c->unit < timeline.units.size();
      started[*step].emplace_back(
          c, OrderEntry{*kind, named ? timeline.units[*c->unit] : action.unit});
    }
  }
  for (size_t step = 0; step < out.size(); ++step) {
    out[step].started = as_started(trace, started[step]);
  }
  return out;
}

Order check_order(const std::vector<StepOrder>& steps) {
  Order order;
  for (const StepOrder& step : steps) {
    compare(step.step, step.planned, step.issued, order.planned_vs_issued);
    compare(step.step, step.issued, step.started, order.issued_vs_started);
  }
  return order;
}

}  // namespace shardlens::analysis
