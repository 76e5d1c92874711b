#pragma once

#include "core/plan/resolved_plan.h"
#include "core/schedule/planned.h"
#include "sim/engine/step_costs.h"

namespace shardlens::sim {

// Appends the durations of the buckets of replicated units to those of the plan's units, so that
// `costs.units` goes by Action::unit of `step`: the all-reduce over the replicate axis, or over the
// shard axis where there is no other; the copies of gradients into the bucket, and back unless
// gradients are views of it.
void add_bucket_costs(const plan::ResolvedPlan& plan,
                      const schedule::PlannedStep& step,
                      const CostModel& model,
                      StepCosts& costs);

// Ranks that reduce a bucket.
[[nodiscard]] int64_t bucket_ranks(const plan::ResolvedPlan& plan);

}  // namespace shardlens::sim
