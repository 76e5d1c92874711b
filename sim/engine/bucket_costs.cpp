#include "sim/engine/bucket_costs.h"

#include <algorithm>

namespace shardlens::sim {

void add_bucket_costs(const plan::ResolvedPlan& plan,
                      const schedule::PlannedStep& step,
                      const CostModel& model,
                      StepCosts& costs) {
  const bool views = std::all_of(plan.units.begin(), plan.units.end(), [](const plan::Unit& unit) {
    return unit.api != plan::Api::kReplicate || unit.gradient_as_bucket_view;
  });
  const mesh::Group& group = plan.groups[schedule::bucket_group(plan)];
  for (size_t id = costs.units.size(); id < step.unit_names.size(); ++id) {
    UnitCosts& unit = costs.units.emplace_back();
    // Buckets from before the rebuild have names too, but are not in this step.
    const auto bucket =
        std::find_if(step.buckets.begin(), step.buckets.end(),
                     [&](const auto& each) { return each.name == step.unit_names[id]; });
    if (bucket == step.buckets.end()) {
      continue;
    }
    unit.all_reduce_full = collective_cost(model, CollectiveKind::kAllReduce, group, bucket->bytes);
    if (!views) {
      unit.reduce_copy_in = unit.copy_out = model.copy(bucket->bytes, bucket->bytes);
    }
  }
}

}  // namespace shardlens::sim
