#include <algorithm>
#include <map>
#include <string>

#include <fmt/format.h>

#include "profiler/analysis/figures/group_figures.h"
#include "profiler/analysis/timeline/communicator_of.h"
#include "profiler/analysis/waste/waste_rules.h"

namespace shardlens::analysis {
namespace {

bool is_of_experts(const Collective& c) {
  return c.kind == CollectiveKind::kAllToAll || c.purpose == Purpose::kTokens;
}

bool is_of_sharding(const Collective& c) {
  return c.purpose == Purpose::kGatherParameters || c.purpose == Purpose::kReduceGradients;
}

}  // namespace

// Collectives of one communicator run in the order of their calls. One that was called while the
// other kind ran waited for it; what the rank computed meanwhile is not lost.
void find_shared_communicators(const WasteInput& in, FoundWaste& found) {
  // Less is a gap that the launch of a kernel leaves.
  constexpr Nanoseconds kNext = 50'000;
  const Timeline& timeline = in.timeline;
  std::map<CommunicatorKey, size_t> before;  // the last collective
  for (size_t i = 0; i < timeline.collectives.size(); ++i) {
    const Collective& c = timeline.collectives[i];
    const auto [last, fresh] = before.try_emplace(communicator_of(in.trace, c), i);
    const size_t previous = last->second;
    last->second = i;
    const Collective& other = timeline.collectives[previous];
    const bool both =
        (is_of_experts(c) && is_of_sharding(other)) || (is_of_sharding(c) && is_of_experts(other));
    if (fresh || !both || !c.issued || !contains(in.window, c.when.start) ||
        *c.issued >= other.when.end || c.when.start - other.when.end > kNext) {
      continue;
    }
    const Interval waited{std::max(*c.issued, other.when.start), other.when.end};
    const Nanoseconds lost = shared_length(in.partition.exposed(previous, in.window), {waited});
    if (lost > 0) {
      found.add(WasteKind::kSharedCommunicator,
                fmt::format("{} behind {} on {}", name_of(c.kind.value()),
                            name_of(other.kind.value()), group_label(in.trace, c)),
                lost);
    }
  }
}

}  // namespace shardlens::analysis
