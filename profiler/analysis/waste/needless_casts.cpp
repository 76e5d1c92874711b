#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "profiler/analysis/waste/waste_rules.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;

class CastWaste {
 public:
  CastWaste(const WasteInput& in, FoundWaste& found)
      : trace_(in.trace),
        timeline_(in.timeline),
        partition_(in.partition),
        window_(in.window),
        launches_(in.launches),
        found_(found) {}

  // Casts of parameters for an all-gather, after the first one since the optimizer ran.
  void run() {
    const std::vector<FsdpEvent>& events = timeline_.fsdp.events;
    std::vector<Nanoseconds> optimizers;
    std::vector<uint32_t> casts, copies;
    timeline_.lists.for_annotations_named(
        trace_, [](std::string_view n) { return n.starts_with("Optimizer."); },
        [&](uint32_t i) { optimizers.push_back(trace_.events[i].start); });
    if (optimizers.empty()) {
      return;
    }
    timeline_.lists.for_operators_named(
        trace_,
        [](std::string_view n) { return n == "aten::_to_copy" || n == "aten::_foreach_copy_"; },
        [&](uint32_t i) { casts.push_back(i); });
    timeline_.lists.for_operators_named(
        trace_, [](std::string_view n) { return n == "fsdp::all_gather_copy_in"; },
        [&](uint32_t i) { copies.push_back(i); });
    if (casts.empty()) {
      return;
    }
    std::sort(optimizers.begin(), optimizers.end());
    std::map<size_t, Nanoseconds> copied;  // event of the log → start of its copy-in
    for (const uint32_t copy : copies) {
      const Event& event = trace_.events[copy];
      const FsdpEvent* call = timeline_.fsdp.collective_at(event.track, event.start);
      if (call != nullptr && call->call == FsdpCall::kUnshard) {
        copied.emplace(static_cast<size_t>(call - events.data()), event.start);
      }
    }
    std::map<size_t, std::vector<uint32_t>> by_gather;  // event of the log → casts
    for (const uint32_t cast : casts) {
      const Event& event = trace_.events[cast];
      const FsdpEvent* call = timeline_.fsdp.collective_at(event.track, event.start);
      if (call == nullptr || call->call != FsdpCall::kUnshard) {
        continue;
      }
      // FSDP2 casts before it copies into the all-gather's buffer, and that copy uses the same
      // operators.
      const auto gather = static_cast<size_t>(call - events.data());
      const auto copy = copied.find(gather);
      if (copy != copied.end() ? event.end() <= copy->second
                               : trace_.name(event) == "aten::_to_copy") {
        by_gather[gather].push_back(cast);
      }
    }
    std::set<std::pair<std::ptrdiff_t, uint32_t>> cast_before;
    for (const auto& [gather, list] : by_gather) {  // by start
      const FsdpEvent& e = events[gather];
      const std::ptrdiff_t update =
          std::lower_bound(optimizers.begin(), optimizers.end(), e.when.start) - optimizers.begin();
      if (cast_before.insert({update, e.unit}).second) {
        continue;
      }
      Nanoseconds lost = 0;
      for (const uint32_t cast : list) {
        lost += cast_time(trace_.events[cast]);
      }
      if (lost > 0) {
        found_.add(WasteKind::kCastAgain, timeline_.fsdp.units[e.unit].fqn, lost);
      }
    }
  }

 private:
  // The exposed time of a cast: of the operator, or of the kernels that it launched.
  [[nodiscard]] Nanoseconds cast_time(const Event& cast) const {
    const IntervalSet& exposed = partition_.exposed_copy();
    if (!timeline_.device) {
      return shared_length(clip(exposed, {cast.start, cast.end()}), window_);
    }
    Nanoseconds sum = 0;
    for (const DeviceEvent* each : launches_.within(cast)) {
      const Event& event = trace_.events[each->event];
      if (event.category == Category::kKernel) {  // a copy from the host casts nothing
        sum += shared_length(clip(exposed, {event.start, event.end()}), window_);
      }
    }
    return sum;
  }

  const trace::Trace& trace_;
  const Timeline& timeline_;
  const Partition& partition_;
  const IntervalSet& window_;
  const ThreadLaunches& launches_;
  FoundWaste& found_;
};

}  // namespace

void find_needless_casts(const WasteInput& in, FoundWaste& found) {
  CastWaste(in, found).run();
}

}  // namespace shardlens::analysis
