#include <optional>
#include <string>

#include "profiler/analysis/waste/waste_rules.h"

namespace shardlens::analysis {

// Backward begins with the root's own modules, the head and the norm before it, so what is freed
// after forward is gathered again at once. A run whose only unit is the root has nothing else that
// it could free.
void find_root_gathers(const WasteInput& in, FoundWaste& found) {
  const Timeline& timeline = in.timeline;
  bool others = false, kept = false;
  std::optional<uint32_t> root;
  for (const Collective& c : timeline.collectives) {
    if (c.unit && c.purpose == Purpose::kGatherParameters) {
      const bool is_root = timeline.units[*c.unit].empty();
      root = is_root ? c.unit : root;
      others = others || !is_root;
      kept = kept || (is_root && c.part == UnitPart::kAllGatherForward);
    }
  }
  if (!root || !others || !kept || timeline.rewritten) {
    return;
  }
  for (size_t i = 0; i < timeline.collectives.size(); ++i) {
    const Collective& c = timeline.collectives[i];
    if (c.unit == root && c.part == UnitPart::kAllGatherBackward &&
        contains(in.window, c.when.start)) {
      found.add(WasteKind::kRootGatheredAgain, "", length_of(in.partition.exposed(i, in.window)));
    }
  }
}

}  // namespace shardlens::analysis
