#pragma once

#include <memory>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/schedule/planned/planned.h"
#include "core/workload/workload.h"
#include "sim/cost/cost_model.h"
#include "sim/engine/rank_workload.h"
#include "sim/engine/step_costs.h"

namespace shardlens::sim {

// A step that can be simulated: what runs, under which plan, in which order, and how long
// everything in it takes. The simulator, the replay of memory and the trace writer all take it.
//
// Ownership  shared by all copies, so a copy is cheap; a borrowed step owns nothing. None is null
//            except in a step that was not set.
// Threads    may be read from any thread, because nothing of it changes.
struct PricedStep {
  std::shared_ptr<const plan::Workload> workload;  // one microbatch
  // The same of each rank, where they differ in the sizes of operators and communications; null:
  // all ranks are alike.
  std::shared_ptr<const std::vector<RankWorkload>> of_ranks;
  std::shared_ptr<const plan::ResolvedPlan> plan;
  std::shared_ptr<const schedule::PlannedStep> planned;  // of all microbatches
  std::shared_ptr<const StepCosts> costs;                // StepCosts::units also has the buckets'

  // A step that refers to the caller's objects, which must outlive its use unchanged: for those who
  // predict many plans and use storage again.
  [[nodiscard]] static PricedStep borrowed(const plan::Workload& workload,
                                           const plan::ResolvedPlan& plan,
                                           const schedule::PlannedStep& planned,
                                           const StepCosts& costs);
};

// The durations of a planned step. `planned` is of `workload` under `plan`. `of_ranks`: each rank's
// own workload, which has the hooks and communications of `workload` in its order; empty: all ranks
// are alike.
//
// Errors  InputError for work that `model` has no duration of.
[[nodiscard]] PricedStep priced_step(plan::Workload workload,
                                     plan::ResolvedPlan plan,
                                     schedule::PlannedStep planned,
                                     const CostModel& model,
                                     std::vector<RankWorkload> of_ranks = {});

// The durations of a priced step by another model. Errors: as priced_step().
[[nodiscard]] StepCosts costs_of(const PricedStep& step, const CostModel& model);

}  // namespace shardlens::sim
