#pragma once

#include <array>
#include <span>
#include <vector>

#include "core/base/hook.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/unit_sizes.h"
#include "core/plan/workload.h"
#include "core/schedule/action.h"
#include "sim/cost/cost_model.h"

namespace shardlens::sim {

struct CollectiveCost {
  WorkTime wait;  // for peers that come later
  WorkTime run;
};

// Durations of what the schedule does with one unit.
struct UnitCosts {
  CollectiveCost all_gather, sub_all_gather, reduce_scatter;
  CollectiveCost all_reduce_shard, all_reduce_full;  // of kReduceOutput; of the whole gradient
  Nanoseconds copy_in = 0, copy_out = 0, sub_copy_out = 0, reduce_copy_in = 0;
  Nanoseconds flatten = 0;  // of gradients that no copy packs or casts (schedule::reads_gradient)
  Nanoseconds store = 0, store_add = 0;  // the first gradient of a step becomes the shard's
  Nanoseconds to_device = 0, to_host = 0;
};

// All durations of a step, asked for once: the simulator only adds them up.
struct StepCosts {
  std::vector<OperatorCost> operators;  // by index into Workload::operators
  std::vector<UnitCosts> units;
  std::array<Nanoseconds, schedule::kOpCount> issue{};  // on the host
  std::array<Nanoseconds, kHookCount> hooks{};          // the same, beside its actions
  Nanoseconds waking = 0;    // of a CPU's host, behind a wait in which it slept
  double host_slowdown = 1;  // of issue, hooks and copies on a CPU, with communication beside
};

// A group of so many ranks, each so many after the one before.
struct Group {
  int64_t ranks = 1, stride = 1;
};
[[nodiscard]] CollectiveCost collective_cost(const CostModel& model,
                                             CollectiveKind kind,
                                             const Group& group,
                                             Bytes larger_message);

// What the action copies, on its stream; 0 for one that copies nothing. `adds`: the shard has a
// gradient of this step already.
[[nodiscard]] Nanoseconds copy_time(const schedule::Action& action,
                                    const UnitCosts& unit,
                                    bool adds);

// Asks `model` once per distinct operator and per unit.
[[nodiscard]] StepCosts step_costs(const plan::Workload& workload,
                                   const plan::ResolvedPlan& plan,
                                   const CostModel& model);

// Of the plan's units alone; a unit like the one before it is not asked for again. `sizes`:
// plan::unit_sizes(plan).
[[nodiscard]] std::vector<UnitCosts> unit_costs(const plan::ResolvedPlan& plan,
                                                std::span<const plan::UnitSize> sizes,
                                                const CostModel& model);

}  // namespace shardlens::sim
