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
  CastWaste(const WasteInput& in, FoundWaste& found) : in_(in), found_(found) {}

  // Casts of parameters for an all-gather, after the first one since the optimizer ran.
  void run() {
    const std::vector<FsdpEvent>& events = in_.timeline.fsdp.events;
    std::vector<Nanoseconds> optimizers;
    std::vector<uint32_t> casts, copies;
    in_.timeline.lists.for_annotations_named(
        in_.trace, [](std::string_view n) { return n.starts_with("Optimizer."); },
        [&](uint32_t i) { optimizers.push_back(in_.trace.events[i].start); });
    if (optimizers.empty()) {
      return;
    }
    in_.timeline.lists.for_operators_named(
        in_.trace,
        [](std::string_view n) { return n == "aten::_to_copy" || n == "aten::_foreach_copy_"; },
        [&](uint32_t i) { casts.push_back(i); });
    in_.timeline.lists.for_operators_named(
        in_.trace, [](std::string_view n) { return n == "fsdp::all_gather_copy_in"; },
        [&](uint32_t i) { copies.push_back(i); });
    if (casts.empty()) {
      return;
    }
    std::sort(optimizers.begin(), optimizers.end());
    std::map<size_t, Nanoseconds> copied;  // event of the log → start of its copy-in
    for (const uint32_t copy : copies) {
      const Event& event = in_.trace.events[copy];
      const FsdpEvent* call = in_.timeline.fsdp.collective_at(event.track, event.start);
      if (call != nullptr && call->call == FsdpCall::kUnshard) {
        copied.emplace(static_cast<size_t>(call - events.data()), event.start);
      }
    }
    std::map<size_t, std::vector<uint32_t>> by_gather;  // event of the log → casts
    for (const uint32_t cast : casts) {
      const Event& event = in_.trace.events[cast];
      const FsdpEvent* call = in_.timeline.fsdp.collective_at(event.track, event.start);
      if (call == nullptr || call->call != FsdpCall::kUnshard) {
        continue;
      }
      // FSDP2 casts before it copies into the all-gather's buffer, and that copy uses the same
      // operators.
      const auto gather = static_cast<size_t>(call - events.data());
      const auto copy = copied.find(gather);
      if (copy != copied.end() ? event.end() <= copy->second
                               : in_.trace.name(event) == "aten::_to_copy") {
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
        lost += cast_time(in_.trace.events[cast]);
      }
      if (lost > 0) {
        found_.add(WasteKind::kCastAgain, in_.timeline.fsdp.units[e.unit].fqn, lost);
      }
    }
  }

 private:
  // The exposed time of a cast: of the operator, or of the kernels that it launched.
  [[nodiscard]] Nanoseconds cast_time(const Event& cast) const {
    const IntervalSet& exposed = in_.partition.exposed_copy();
    if (!in_.timeline.device) {
      return shared_length(clip(exposed, {cast.start, cast.end()}), in_.window);
    }
    Nanoseconds sum = 0;
    for (const DeviceEvent* each : in_.launches.within(cast)) {
      const Event& event = in_.trace.events[each->event];
      if (event.category == Category::kKernel) {  // a copy from the host casts nothing
        sum += shared_length(clip(exposed, {event.start, event.end()}), in_.window);
      }
    }
    return sum;
  }

  const WasteInput& in_;
  FoundWaste& found_;
};

}  // namespace

void find_needless_casts(const WasteInput& in, FoundWaste& found) {
  CastWaste(in, found).run();
}

}  // namespace shardlens::analysis
