#pragma once

#include <array>
#include <span>
#include <vector>

#include "core/base/collective.h"
#include "core/base/hook.h"
#include "core/mesh/mesh.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/unit_sizes.h"
#include "core/schedule/action.h"
#include "core/workload/workload.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/operator_sums.h"

namespace shardlens::sim {

struct CollectiveCost {  // of a collective on one rank
  WorkTime wait;         // for peers that arrive later
  WorkTime run;
  LinkUse link;
};

struct CommunicationCost {  // of communication that the workload has
  CollectiveCost run;
  Nanoseconds issue = 0, before_wait = 0;  // on the host
};

// Durations of the actions of one reduction of gradients.
struct ReductionCosts {
  CollectiveCost reduce_scatter;
  CollectiveCost all_reduce_shard, all_reduce_full;  // kReduceOutput; the whole gradient
  Nanoseconds reduce_copy_in = 0;
  Nanoseconds store = 0, store_add = 0;  // first gradient of a step; later ones are added to it
};

// Durations of the schedule's actions for one unit. `last`, `others`: of reductions of only these
// gradients (Action::grads), for units that have them (plan::UnitSize).
struct UnitCosts : ReductionCosts {
  CollectiveCost all_gather, sub_all_gather;
  Nanoseconds copy_in = 0, copy_out = 0, sub_copy_out = 0;
  Nanoseconds flatten = 0;  // gradients that no copy packs or casts (schedule::reads_gradient)
  ReductionCosts last, others;

  [[nodiscard]] const ReductionCosts& reduction(Grads grads) const {
    return grads == Grads::kLast ? last : grads == Grads::kOthers ? others : *this;
  }
  Nanoseconds to_device = 0, to_host = 0, to_host_add = 0;  // with cpu_offload
  WorkTime step;  // of the optimizer, with optimizer_in_backward
};

// What differs between ranks whose operators have other sizes, by the indices of the workload.
struct RankCosts {
  std::vector<OperatorCost> operators;
  std::vector<OperatorSums> sums;  // operator_sums(operators)
  std::vector<CommunicationCost> communications;
};

// All durations of a step, computed once; the simulator only combines them.
struct StepCosts {
  std::vector<OperatorCost> operators;  // by index into Workload::operators
  std::vector<OperatorSums> sums;       // operator_sums(operators)
  std::vector<UnitCosts> units;
  std::vector<CommunicationCost> communications;        // by index into Workload::communications
  std::vector<RankCosts> of_ranks;                      // empty: all ranks are alike
  std::array<Nanoseconds, schedule::kOpCount> issue{};  // host time
  std::array<Nanoseconds, kHookCount> hooks{};          // host time without the hook's actions
  // By CollectiveKind: on a CPU the host waits for a unit's collective where it issues it.
  std::array<bool, kCollectiveKindCount> blocking{};
  Nanoseconds waking = 0;    // delay of a CPU's host thread when it wakes up from a wait
  double host_slowdown = 1;  // issue, hooks and copies on a CPU, during communication
};

// `shares`: whether collectives of other communicators may run at the same time.
[[nodiscard]] CollectiveCost collective_cost(const CostModel& model,
                                             CollectiveKind kind,
                                             const mesh::Group& group,
                                             Bytes larger_message,
                                             bool shares = false);

// The costs of the workload's communications, whose groups are the plan's. `model` is queried once
// per kind, group and size.
[[nodiscard]] std::vector<CommunicationCost> communication_costs(const plan::Workload& workload,
                                                                 const plan::ResolvedPlan& plan,
                                                                 const CostModel& model);

// Duration of the action's copy on its stream; 0 if it copies nothing. `adds`: the shard already
// has a gradient of this step.
[[nodiscard]] Nanoseconds copy_time(const schedule::Action& action,
                                    const UnitCosts& unit,
                                    bool adds);

// The part of the elements that the optimizer updates whose units are offloaded: it steps them on
// the host.
[[nodiscard]] double share_on_host(const plan::ResolvedPlan& plan,
                                   std::span<const plan::UnitSize> sizes);

// Durations of an operator. The host does its part of the optimizer's work itself, so this is time
// to issue it; on a CPU, which is the host, all is run alike.
[[nodiscard]] OperatorCost operator_cost(const plan::Operator& op,
                                         double share_on_host,
                                         const CostModel& model);

// Sets UnitCosts::step. `operators`: of the units with optimizer_in_backward.
void add_steps(std::span<const plan::Operator> operators,
               const CostModel& model,
               std::span<UnitCosts> costs);

// Queries `model` once per distinct operator and per unit.
[[nodiscard]] StepCosts step_costs(const plan::Workload& workload,
                                   const plan::ResolvedPlan& plan,
                                   const CostModel& model);

// Durations of only the plan's units; `model` is not queried again for a unit like the previous
// one. `sizes`: plan::unit_sizes(plan). `program`: see [Note: Traced steps] in step_settings.h.
[[nodiscard]] std::vector<UnitCosts> unit_costs(const plan::ResolvedPlan& plan,
                                                std::span<const plan::UnitSize> sizes,
                                                const CostModel& model,
                                                plan::Program program);

}  // namespace shardlens::sim
