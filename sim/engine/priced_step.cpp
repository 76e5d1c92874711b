#include "sim/engine/priced_step.h"

#include <utility>

#include "sim/engine/bucket_costs.h"

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
  return {unowned(workload), unowned(plan), unowned(planned), unowned(costs)};
}

PricedStep priced_step(plan::Workload workload,
                       plan::ResolvedPlan plan,
                       schedule::PlannedStep planned,
                       const CostModel& model) {
  StepCosts costs = step_costs(workload, plan, model);
  add_bucket_costs(plan, planned, model, costs);
  return {std::make_shared<const plan::Workload>(std::move(workload)),
          std::make_shared<const plan::ResolvedPlan>(std::move(plan)),
          std::make_shared<const schedule::PlannedStep>(std::move(planned)),
          std::make_shared<const StepCosts>(std::move(costs))};
}

}  // namespace shardlens::sim
