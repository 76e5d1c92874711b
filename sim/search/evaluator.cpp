#include "sim/search/evaluator.h"

#include <algorithm>
#include <utility>

#include "core/plan/resolver.h"
#include "core/plan/unit_sizes.h"
#include "core/plan/workload_builder.h"
#include "sim/engine/alike.h"
#include "sim/predict/predict.h"

namespace shardlens::sim {
namespace {

// `a`, but for its microbatch.
bool same_family(const Candidate& a, Candidate b) {
  b.batch = a.batch;
  b.accumulate = a.accumulate;
  return a == b;
}

bool same_operators(const Candidate& a, const Candidate& b) {
  return a.blocks_per_unit == b.blocks_per_unit && a.checkpoint == b.checkpoint;
}

}  // namespace

void Evaluator::take_family(const Candidate& candidate) {
  if (family_ && same_family(*family_, candidate)) {
    return;
  }
  planned_.clear();
  const plan::Plan plan = plan_of(candidate, model_.base, model_.tree, model_.ranks);
  if (family_ && same_operators(*family_, candidate)) {
    family_.reset();
    plan_ = plan::Resolver(plan, std::move(plan_)).run_settings();
  } else {
    family_.reset();
    sized_.clear();
    plan_ = plan::resolve(plan, model_.tree, model_.ranks);
  }
  require_simulator_support(plan_, model_.hardware);
  optimizer_ = plan::optimizer_operator(plan_);
  unit_costs_ = unit_costs(plan_, costs_);
  // Shards of parameters, gradients and optimizer states.
  least_bytes_ = 0;
  for (const plan::UnitSize& unit : plan::unit_sizes(plan_)) {
    least_bytes_ += (unit.shard + unit.reduced_shard + unit.stepped * model_.optimizer_states) *
                    size_of(DType::kF32);
  }
  family_ = candidate;
}

Evaluator::Sized& Evaluator::sized(int64_t batch) {
  const auto [it, fresh] = sized_.try_emplace(batch);
  Sized& out = it->second;
  if (fresh) {
    out.workload = plan::step_workload(model_.config, plan_, batch, model_.seq);
    out.costs = step_costs(out.workload, plan_, costs_);
  }
  // Of this family's shards.
  out.workload.operators.back() = optimizer_;
  out.costs.operators.back() = {costs_.compute(optimizer_), costs_.issue(optimizer_)};
  out.costs.units = unit_costs_;
  return out;
}

const schedule::PlannedStep& Evaluator::planned(const plan::Workload& workload,
                                                int64_t accumulate) {
  const auto [it, fresh] = planned_.try_emplace(accumulate);
  if (fresh) {
    it->second = schedule::planned_step(workload, plan_, kSteadyStep, static_cast<int>(accumulate),
                                        model_.sync_every_microbatch);
  }
  return it->second;
}

Outcome Evaluator::evaluate(const Candidate& candidate) {
  take_family(candidate);
  if (least_bytes_ > model_.hardware.gpu.memory) {
    return {.peak = least_bytes_, .fits = false};
  }
  const int64_t planned = std::min<int64_t>(candidate.accumulate, kPlannedMicrobatches);
  Figures figures = predicted(candidate, planned);
  if (!figures.alike) {
    figures = predicted(candidate, candidate.accumulate);
  }
  return {.step = figures.step.duration,
          .compute = figures.busy.compute,
          .exposed_comm = figures.busy.exposed_comm,
          .exposed_copy = figures.busy.exposed_copy,
          .idle = figures.busy.idle,
          .peak = figures.memory.peak_reserved,
          .peak_allocated = figures.memory.peak_allocated,
          .fits = figures.memory.fits};
}

Figures Evaluator::predicted(const Candidate& candidate, int64_t microbatches) {
  const Sized& of = sized(candidate.batch);
  RunSettings settings;
  settings.accumulate = candidate.accumulate;
  settings.sync_every_microbatch = model_.sync_every_microbatch;
  settings.optimizer_states = model_.optimizer_states;
  settings.list_alive = false;
  settings.simulation.more_microbatches = candidate.accumulate - microbatches;
  settings.simulation.keep_times = settings.simulation.more_microbatches > 0;
  return predict_figures(of.workload, plan_, planned(of.workload, microbatches), of.costs,
                         model_.hardware, settings);
}

}  // namespace shardlens::sim
