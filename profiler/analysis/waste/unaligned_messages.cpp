#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/schedule/planned/plan_lints.h"
#include "profiler/analysis/timeline/communicator_of.h"
#include "profiler/analysis/waste/waste_rules.h"

namespace shardlens::analysis {
namespace {

// Of each rank; 0: not known, or no collective that has parts.
Bytes part_of_message(const Collective& c) {
  const bool divides =
      c.kind == CollectiveKind::kAllGather || c.kind == CollectiveKind::kReduceScatter;
  return divides && c.ranks > 1 && c.bytes % c.ranks == 0 ? c.bytes / c.ranks : 0;
}

bool is_aligned(Bytes part) {
  return part % schedule::kMessageAlignment == 0;
}

double nanoseconds_per_byte(const Collective& c) {
  return static_cast<double>(c.when.length()) / static_cast<double>(c.bytes);
}

}  // namespace

// What is lost is known only where the trace has aligned messages of a similar size: the fastest of
// them on the same communicator shows how long the others could take.
void find_unaligned_messages(const WasteInput& in, FoundWaste& found) {
  const Timeline& timeline = in.timeline;
  if (!timeline.device || in.trace.metadata.simulated()) {
    return;
  }
  const auto is_unaligned = [&](const Collective& c) {
    const Bytes part = part_of_message(c);
    return part >= schedule::kShortMessage && !is_aligned(part) &&
           contains(in.window, c.when.start);
  };
  if (std::ranges::none_of(timeline.collectives, is_unaligned)) {
    return;
  }
  using Key = std::pair<CollectiveKind, CommunicatorKey>;
  std::map<Key, std::vector<const Collective*>> aligned;
  for (const Collective& c : timeline.collectives) {
    const Bytes part = part_of_message(c);
    if (part >= schedule::kShortMessage && is_aligned(part)) {
      aligned[{*c.kind, communicator_of(in.trace, c)}].push_back(&c);
    }
  }
  for (size_t i = 0; i < timeline.collectives.size(); ++i) {
    const Collective& c = timeline.collectives[i];
    if (!is_unaligned(c)) {
      continue;
    }
    std::optional<double> best;
    for (const Collective* other : aligned[{*c.kind, communicator_of(in.trace, c)}]) {
      if (other->bytes >= c.bytes / 2 && other->bytes <= c.bytes * 2) {
        best = std::min(best.value_or(nanoseconds_per_byte(*other)), nanoseconds_per_byte(*other));
      }
    }
    const double possible =
        best ? *best * static_cast<double>(c.bytes) : static_cast<double>(c.when.length());
    const auto longer =
        static_cast<Nanoseconds>(std::max(0.0, static_cast<double>(c.when.length()) - possible));
    found.add(WasteKind::kUnalignedMessage,
              fmt::format("{} of {} bytes a rank", name_of(*c.kind), part_of_message(c)),
              std::min(longer, in.partition.exposed_length(i, in.window)));
  }
}

}  // namespace shardlens::analysis
