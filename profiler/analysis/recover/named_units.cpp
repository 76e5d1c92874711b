#include "core/layout/shard_layout.h"
#include "core/plan/resolve.h"
#include "profiler/analysis/recover/recovered_plan.h"

namespace shardlens::analysis {

bool name_units(RecoveredPlan& recovered, const plan::ModuleTree& tree) {
  if (recovered.units.size() != tree.blocks.size() + 1) {
    return false;
  }
  plan::Plan named = recovered.plan;
  named.units.clear();
  for (const uint32_t block : tree.blocks) {
    named.units.push_back({});
    named.units.back().globs = {tree.modules[block].fqn};
  }
  named.units.push_back({});
  named.units.back().globs = {""};
  const plan::ResolvedPlan resolved = plan::resolve(named, tree, recovered.world_size);
  for (size_t i = 0; i < recovered.units.size(); ++i) {
    const int64_t seen = recovered.units[i].padded_numel;
    if (seen >= 0 && resolved.layout(static_cast<UnitId>(i)).padded_numel() != seen) {
      return false;
    }
  }
  for (size_t i = 1; i < recovered.units.size(); ++i) {
    recovered.units[i].fqn = resolved.units[i].fqn;
  }
  for (size_t i = 0; i + 1 < recovered.plan.units.size(); ++i) {
    recovered.plan.units[i].globs = named.units[i].globs;
  }
  recovered.names_units = true;
  return true;
}

}  // namespace shardlens::analysis
