// Owners of collectives of CUDA graphs, by the order that the run's plan gives.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "profiler/analysis/timeline/captured_work.h"
#include "profiler/trace/parallel_axes.h"

namespace shardlens::analysis {
namespace {

constexpr std::array kShardingKinds{CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllReduce};
using Calls = std::vector<PlannedCall>;
using ByKind = std::map<CollectiveKind, std::vector<uint32_t>>;  // positions, in order

ByKind by_kind(const Calls& calls) {
  ByKind out;
  for (uint32_t i = 0; i < calls.size(); ++i) {
    out[calls[i].kind].push_back(i);
  }
  return out;
}

size_t count_of(const ByKind& of, CollectiveKind kind) {
  const auto found = of.find(kind);
  return found == of.end() ? 0 : found->second.size();
}

// Matches the collectives of a replay with those of a planned step.
//
// [Note: Planned places] Collectives of one kind that a plan issues on one stream are in order, so
// the n-th of the replay is the n-th of the plan, if the plan has all of the replay. All-gathers
// and reduce-scatters must both fit in number. All-reduces may be more, of the loss or the norm;
// then theirs are ambiguous. How many microbatches a graph has follows from the numbers too. Where
// they are those of several, collectives of another parallelism could be among them: so the trace
// must list none, and those of a kind must have run on one stream. No reduction begins before the
// gather of its parameters has ended.
class PlannedReplay {
 public:
  PlannedReplay(const Sources& sources,
                const std::vector<uint32_t>& replay,
                std::vector<SeenEvent>& events)
      : sources_(sources), events_(events) {
    for (const uint32_t i : replay) {
      const SeenEvent& seen = events[i];
      if (seen.nature == Nature::kCommunication && seen.kind) {
        found_[*seen.kind].push_back(i);
      }
    }
    may_be_several_ =
        trace::model_axes(sources.trace.metadata.groups).empty() &&
        std::ranges::all_of(kShardingKinds, [&](CollectiveKind kind) { return one_stream(kind); });
  }

  [[nodiscard]] bool communicates() const {
    return std::ranges::any_of(kShardingKinds,
                               [&](CollectiveKind kind) { return count_of(found_, kind) > 0; });
  }

  // Sets the planned calls of the collectives, and returns the step; nullptr: none fits, or
  // several.
  const PlannedPass* attribute(PlannedOrder& order) {
    std::vector<const PlannedPass*> fitting;
    for (int count = 1; count <= most_microbatches(order); ++count) {
      for (const bool every : {true, false}) {
        const PlannedPass& pass = order.step({count, every});
        const bool known = std::ranges::any_of(
            fitting, [&](const PlannedPass* other) { return other->calls == pass.calls; });
        if (!known && fits(pass.calls) && (count == 1 || may_be_several_)) {
          fitting.push_back(&pass);
        }
      }
    }
    const PlannedPass* one = fitting.size() == 1 ? fitting.front() : nullptr;
    if (one != nullptr) {
      take(one->calls);
    }
    const ByKind planned = by_kind(order.step({}).calls);
    for (const CollectiveKind kind : kShardingKinds) {
      for (const uint32_t i :
           count_of(planned, kind) > 0 ? found_[kind] : std::vector<uint32_t>()) {
        if (events_[i].planned == nullptr) {
          events_[i].owner = {Section::kAmbiguous, kNoUnit};
          events_[i].basis = Basis::kAmbiguous;
        }
      }
    }
    return one;
  }

  // The first collective that only one of plan and replay has, for a message.
  [[nodiscard]] std::string difference(PlannedOrder& order) const {
    const Calls* nearest = nullptr;
    int microbatches = 1;
    size_t least = 0;
    for (int count = 1; count <= most_microbatches(order); ++count) {
      for (const bool every : {true, false}) {
        const Calls& calls = order.step({count, every}).calls;
        const size_t different = different_number(by_kind(calls));
        if (nearest == nullptr || different < least) {
          nearest = &calls;
          least = different;
          microbatches = count;
        }
      }
    }
    const ByKind planned = by_kind(*nearest);
    for (const CollectiveKind kind : kShardingKinds) {
      const size_t expected = count_of(planned, kind), found = count_of(found_, kind);
      if (expected == found || (found > expected && is_optional(planned, kind))) {
        continue;
      }
      std::string first =
          fmt::format("{} {} of the graph is not in the plan", name_of(kind), expected + 1);
      if (found < expected) {
        const PlannedCall& call = (*nearest)[planned.at(kind)[found]];
        first = fmt::format("{} {} of the plan ({}, {}) is not in the graph", name_of(kind),
                            found + 1, call.unit.empty() ? "root" : call.unit,
                            call.backward ? "backward" : "forward");
      }
      return fmt::format(
          "it has {} of {}, not {} as {} of the plan; the first difference: {}", found,
          name_of(kind), expected,
          microbatches == 1 ? "one microbatch" : fmt::format("{} microbatches", microbatches),
          first);
    }
    return !may_be_several_ && microbatches > 1
               ? "its number of collectives is that of several microbatches, or of one with those "
                 "of the parallelism within the model"
               : "the collectives have the plan's numbers, but not its order: a reduction began "
                 "before its parameters had been gathered, or several orders are possible";
  }

 private:
  // The largest number of microbatches whose collectives of a kind are not more than the replay's.
  [[nodiscard]] int most_microbatches(PlannedOrder& order) const {
    constexpr int kMost = 64;
    int count = 1;
    while (count < kMost) {
      const Calls& calls = order.step({count + 1, false}).calls;
      const ByKind planned = by_kind(calls);
      const bool more = std::ranges::any_of(kShardingKinds, [&](CollectiveKind kind) {
        return !is_optional(planned, kind) && count_of(planned, kind) > count_of(found_, kind);
      });
      if (more || calls == order.step({count, false}).calls) {
        break;
      }
      ++count;
    }
    return count;
  }

  [[nodiscard]] static bool is_optional(const ByKind& planned, CollectiveKind kind) {
    return kind == CollectiveKind::kAllReduce &&
           count_of(planned, CollectiveKind::kReduceScatter) > 0;
  }

  [[nodiscard]] bool one_stream(CollectiveKind kind) const {
    std::set<uint32_t> tracks;
    const auto of = found_.find(kind);
    for (const uint32_t i : of == found_.end() ? std::vector<uint32_t>() : of->second) {
      tracks.insert(sources_.trace.events[events_[i].event].track);
    }
    return tracks.size() <= 1;
  }

  [[nodiscard]] size_t different_number(const ByKind& planned) const {
    size_t out = 0;
    for (const CollectiveKind kind : kShardingKinds) {
      const size_t a = count_of(planned, kind), b = count_of(found_, kind);
      out += b > a && is_optional(planned, kind) ? 0 : std::max(a, b) - std::min(a, b);
    }
    return out;
  }

  [[nodiscard]] Interval when(uint32_t i) const {
    return Sources::when(sources_.trace.events[events_[i].event]);
  }

  // The replay's collectives by their place in the plan.
  [[nodiscard]] std::map<uint32_t, uint32_t> paired(const Calls& calls) const {
    std::map<uint32_t, uint32_t> out;
    for (const auto& [kind, places] : by_kind(calls)) {
      const bool one_stream = std::ranges::all_of(places, [&, first = places.front()](uint32_t i) {
        return calls[i].stream == calls[first].stream;
      });
      if (one_stream && count_of(found_, kind) == places.size()) {
        for (size_t i = 0; i < places.size(); ++i) {
          out.emplace(places[i], found_.at(kind)[i]);
        }
      }
    }
    return out;
  }

  [[nodiscard]] bool fits(const Calls& calls) const {
    if (calls.empty() || different_number(by_kind(calls)) > 0) {
      return false;
    }
    const std::map<uint32_t, uint32_t> pairs = paired(calls);
    return std::ranges::all_of(pairs, [&](const auto& pair) {
      const int64_t gather = calls[pair.first].gather;
      const auto of = gather < 0 || calls[pair.first].kind == CollectiveKind::kAllGather
                          ? pairs.end()
                          : pairs.find(static_cast<uint32_t>(gather));
      return of == pairs.end() || when(of->second).end <= when(pair.second).start;
    });
  }

  void take(const Calls& calls) {
    for (const auto& [place, i] : paired(calls)) {
      events_[i].planned = &calls[place];
      events_[i].basis = Basis::kOrder;
      events_[i].owner.section = calls[place].backward ? Section::kBackward : Section::kForward;
    }
  }

  const Sources& sources_;
  std::vector<SeenEvent>& events_;
  ByKind found_;
  bool may_be_several_ = false;  // microbatches in one replay
};

}  // namespace

uint32_t unit_named(const std::string& name, Timeline& timeline) {
  const auto found = std::ranges::find(timeline.units, name);
  const auto index = static_cast<uint32_t>(found - timeline.units.begin());
  if (found == timeline.units.end()) {
    timeline.units.push_back(name);
  }
  return index;
}

void attribute_planned(const Sources& sources,
                       PlannedOrder& order,
                       const std::vector<uint32_t>& replay,
                       const std::string& name,
                       std::vector<SeenEvent>& events,
                       Timeline& timeline) {
  PlannedReplay work(sources, replay, events);
  const auto warn = [&timeline](std::string message) {
    trace::add_diagnostic(timeline.diagnostics, trace::Severity::kWarning, std::move(message));
  };
  const PlannedPass* pass = nullptr;
  try {
    if (!work.communicates() || order.step({}).calls.empty()) {
      return;
    }
    pass = work.attribute(order);
    if (pass == nullptr) {
      warn(
          fmt::format("the plan does not fit the CUDA graph of {}: {}; record a step before the "
                      "graph is captured, or give a plan whose units are what one gather moves",
                      name, work.difference(order)));
      return;
    }
  } catch (const Error& error) {
    warn(fmt::format("the planned order is not known: {}", error.what()));
    return;
  }
  for (const uint32_t i : replay) {
    if (events[i].planned != nullptr) {
      events[i].owner.unit = unit_named(events[i].planned->unit, timeline);
    }
  }
  attribute_planned_compute(sources, *pass, replay, events, timeline);
}

}  // namespace shardlens::analysis
