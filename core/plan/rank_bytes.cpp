#include "core/plan/rank_bytes.h"

#include <algorithm>
#include <numeric>

#include "core/plan/unit_sizes.h"

namespace shardlens::plan {
namespace {

Bytes rank_bytes(const ResolvedPlan& plan, int64_t rank) {
  Bytes total = 0;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    total += shard_bytes(plan, id, plan.layout(id, rank));
  }
  for (const uint32_t parameter : plan.ignored_parameters) {
    total += local_bytes(plan, parameter, rank);
  }
  return total;
}

}  // namespace

Bytes local_bytes(const ResolvedPlan& plan, uint32_t parameter, int64_t rank) {
  return plan.local_numel(parameter, rank) * size_of(plan.tree.parameters[parameter].dtype);
}

std::vector<Bytes> bytes_by_rank(const ResolvedPlan& plan) {
  int64_t differ = 1;
  for (const Placement& placed : plan.placements) {
    if (placed.group != mesh::kNoGroup) {
      const mesh::Group& by = plan.groups[placed.group];
      differ = std::lcm(differ, by.size * by.stride);
    }
  }
  std::vector<Bytes> out;
  for (int64_t rank = 0; rank < std::min(differ, plan.world_size); ++rank) {
    out.push_back(rank_bytes(plan, rank));
  }
  return out;
}

}  // namespace shardlens::plan
