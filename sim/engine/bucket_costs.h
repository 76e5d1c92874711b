#pragma once

#include "core/plan/resolved_plan.h"
#include "core/schedule/planned/planned.h"
#include "sim/engine/step_costs.h"

namespace shardlens::sim {

// Appends the durations of the buckets of replicated units to those of the plan's units, so that
// Action::unit of `step` is an index into `costs.units`. A bucket has an all-reduce over
// schedule::bucket_group() and, unless gradients are views of the bucket, copies of gradients into
// and out of it.
void add_bucket_costs(const plan::ResolvedPlan& plan,
                      const schedule::PlannedStep& step,
                      const CostModel& model,
                      StepCosts& costs);

}  // namespace shardlens::sim
