#pragma once

#include <array>
#include <span>
#include <vector>

#include "core/base/hook.h"
#include "core/plan/plan.h"
#include "core/plan/unit_sizes.h"
#include "core/plan/workload.h"
#include "core/schedule/action.h"
#include "sim/cost/cost_model.h"

namespace shardlens::sim {

// Durations of what the schedule does with one unit.
struct UnitCosts {
  WorkTime all_gather, sub_all_gather, reduce_scatter;
  WorkTime all_reduce_shard, all_reduce_full;  // of kReduceOutput; of the whole gradient
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
};

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
