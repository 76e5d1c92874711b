#include "sim/engine/bucket_costs.h"

#include <algorithm>
#include <cmath>

namespace shardlens::sim {

int64_t bucket_ranks(const plan::ResolvedPlan& plan) {
  return plan.replicate > 1 ? plan.replicate : plan.shard;
}

void add_bucket_costs(const plan::ResolvedPlan& plan,
                      const schedule::PlannedStep& step,
                      const CostModel& model,
                      StepCosts& costs) {
  const bool views = std::all_of(plan.units.begin(), plan.units.end(), [](const plan::Unit& unit) {
    return unit.api != plan::Api::kReplicate || unit.gradient_as_bucket_view;
  });
  const auto ranks = static_cast<int>(bucket_ranks(plan));
  const int64_t stride = plan.replicate > 1 ? plan.shard : 1;
  const auto per_node =
      static_cast<int>(std::clamp<int64_t>(model.node_ranks() / stride, 1, ranks));
  for (size_t id = costs.units.size(); id < step.unit_names.size(); ++id) {
    UnitCosts& unit = costs.units.emplace_back();
    // Buckets of before they were rebuilt are named too, but not in this step.
    const auto bucket =
        std::find_if(step.buckets.begin(), step.buckets.end(),
                     [&](const auto& each) { return each.name == step.unit_names[id]; });
    if (bucket == step.buckets.end()) {
      continue;
    }
    const Nanoseconds alone =
        model.duration_across(CollectiveKind::kAllReduce, ranks, per_node, bucket->bytes);
    unit.all_reduce_full = {alone,
                            std::llround(static_cast<double>(alone) * model.collective_slowdown())};
    if (!views) {
      unit.reduce_copy_in = unit.copy_out = model.copy(bucket->bytes, bucket->bytes);
    }
  }
}

}  // namespace shardlens::sim
