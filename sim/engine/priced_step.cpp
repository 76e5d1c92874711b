#include "sim/engine/priced_step.h"

#include <utility>

#include "sim/engine/bucket_costs.h"
#include "sim/engine/rank_costs.h"

namespace shardlens::sim {
namespace {

// A pointer that keeps nothing alive.
template <typename T>
std::shared_ptr<const T> unowned(const T& object) {
  return {std::shared_ptr<const T>(), &object};
}

}  // namespace

PricedStep PricedStep::borrowed(const plan::Workload& workload,
                                const plan::ResolvedPlan& plan,
                                const schedule::PlannedStep& planned,
                                const StepCosts& costs) {
  return {unowned(workload), nullptr, unowned(plan), unowned(planned), unowned(costs)};
}

PricedStep priced_step(plan::Workload workload,
                       plan::ResolvedPlan plan,
                       schedule::PlannedStep planned,
                       const CostModel& model,
                       std::vector<RankWorkload> of_ranks) {
  PricedStep out;
  out.workload = std::make_shared<const plan::Workload>(std::move(workload));
  if (!of_ranks.empty()) {
    out.of_ranks = std::make_shared<const std::vector<RankWorkload>>(std::move(of_ranks));
  }
  out.plan = std::make_shared<const plan::ResolvedPlan>(std::move(plan));
  out.planned = std::make_shared<const schedule::PlannedStep>(std::move(planned));
  out.costs = std::make_shared<const StepCosts>(costs_of(out, model));
  return out;
}

StepCosts costs_of(const PricedStep& step, const CostModel& model) {
  StepCosts out = step_costs(*step.workload, *step.plan, model);
  add_bucket_costs(*step.plan, *step.planned, model, out);
  if (step.of_ranks != nullptr) {
    out.of_ranks = rank_costs(*step.workload, *step.of_ranks, *step.plan, model);
  }
  return out;
}

}  // namespace shardlens::sim
