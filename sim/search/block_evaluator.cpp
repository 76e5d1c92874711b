#include "sim/search/block_evaluator.h"

#include <algorithm>

#include "core/plan/plan_resolver.h"
#include "core/plan/resolve.h"
#include "core/schedule/planned/steady_step.h"
#include "core/workload/communications.h"
#include "core/workload/step_size.h"
#include "core/workload/step_support.h"
#include "sim/engine/alike.h"

namespace shardlens::sim {

BlockEvaluator::BlockEvaluator(const Scenario& scenario, const Target& target)
    : scenario_(scenario),
      target_(target),
      unlimited_(target),
      host_(scenario.host.value_or(scenario.machine->host())) {
  unlimited_.memory = 0;
}

plan::StepSettings BlockEvaluator::step_of(const PlanFrame& frame, int64_t accumulate) const {
  plan::StepSettings out = scenario_.step;
  out.batch = frame.batch;
  out.accumulate = accumulate;
  return out;
}

bool BlockEvaluator::same_operators(const PlanFrame& frame, const BlockChoices& choices) const {
  if (!of_ || of_->first.batch != frame.batch || of_->first.shard != frame.shard ||
      of_->first.outer_units != frame.outer_units || of_->first.saves != frame.saves ||
      of_->first.precision != frame.precision) {
    return false;
  }
  return std::equal(choices.begin(), choices.end(), of_->second.begin(), of_->second.end(),
                    [](const BlockChoice& a, const BlockChoice& b) {
                      return a.starts == b.starts && a.checkpointed == b.checkpointed;
                    });
}

const BlockEvaluator::Operators& BlockEvaluator::operators(const PlanFrame& frame,
                                                           const BlockChoices& choices) {
  const plan::Plan plan =
      plan_of(frame, choices, scenario_.plan, scenario_.model->tree(), scenario_.world_size);
  if (same_operators(frame, choices)) {
    const std::vector<mesh::Group> groups = operators_.plan.groups;
    operators_.plan = plan::Resolver(plan, std::move(operators_.plan)).run_settings();
    scenario_.model->add_groups(operators_.plan);
    plan::change_groups(groups, operators_.plan, operators_.workload);
    operators_.costs.communications =
        communication_costs(operators_.workload, operators_.plan, *target_.costs);
    operators_.costs.units = unit_costs(operators_.plan, operators_.sizes, *target_.costs);
    add_steps(operators_.workload.in_backward, *target_.costs, operators_.costs.units);
    return operators_;
  }
  of_.reset();  // the following may throw
  operators_.plan = scenario_.model->resolve(plan, scenario_.world_size);
  require_simulator_support(operators_.plan, target_);
  operators_.workload = scenario_.model->workload(operators_.plan, step_of(frame, 1));
  operators_.outline = schedule::workload_outline(operators_.workload);
  operators_.sizes = plan::unit_sizes(operators_.plan);
  operators_.costs = step_costs(operators_.workload, operators_.plan, *target_.costs);
  operators_.memory = operator_memory(operators_.workload);
  of_.emplace(frame, choices);
  return operators_;
}

Outcome BlockEvaluator::evaluate(const PlanFrame& frame, const BlockChoices& choices) {
  return simulated(frame, choices, target_);
}

Outcome BlockEvaluator::evaluate_unlimited(const PlanFrame& frame, const BlockChoices& choices) {
  return simulated(frame, choices, unlimited_);
}

Outcome BlockEvaluator::simulated(const PlanFrame& frame,
                                  const BlockChoices& choices,
                                  const Target& target) {
  ++evaluated_;
  (void)operators(frame, choices);
  plan::require_step_support(operators_.plan, step_of(frame, frame.accumulate));
  StepPrediction out =
      predicted(frame, std::min<int64_t>(frame.accumulate, kPlannedMicrobatches), target);
  if (!out.alike) {
    out = predicted(frame, frame.accumulate, target);
  }
  return {.figures = out.figures,
          .peak_reserved = out.memory.peak_reserved,
          .peak_allocated = out.memory.peak_allocated,
          .fits = out.memory.fits};
}

StepPrediction BlockEvaluator::predicted(const PlanFrame& frame,
                                         int64_t microbatches,
                                         const Target& target) {
  const Operators& of = operators_;
  plan::require_step_size(of.workload, microbatches, plan::kMostSearchedOperators);
  schedule::SteadySteps steps(of.workload, of.outline, of.plan);
  const schedule::PlannedStep planned =
      steps.step(static_cast<int>(microbatches), scenario_.step.sync_every_microbatch);
  PredictOptions options;
  options.list_alive = false;
  options.simulation.host = host_;
  options.simulation.waits_for_loss = scenario_.waits_for_loss;
  options.simulation.more_microbatches = frame.accumulate - microbatches;
  options.simulation.keep_times = options.simulation.more_microbatches > 0;
  options.simulation.repeated = repeated_microbatches(planned);
  const MemoryOptions memory = memory_options(target, scenario_.step, options);
  const MemoryOutline outline = memory_outline(planned, of.workload.operators.size());
  const PricedStep step = PricedStep::borrowed(of.workload, of.plan, planned, of.costs);
  return figures_of(
      simulate(step, options.simulation),
      replay_.run({of.workload, of.memory, of.plan, of.sizes, planned.buckets, outline}, memory),
      step, target, step_of(frame, frame.accumulate));
}

}  // namespace shardlens::sim
