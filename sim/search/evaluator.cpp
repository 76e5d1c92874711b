#include "sim/search/evaluator.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/plan/plan_resolver.h"
#include "core/plan/resolve.h"
#include "core/workload/communications.h"
#include "core/workload/merged_units.h"
#include "core/workload/optimizer_operators.h"
#include "core/workload/step_size.h"
#include "core/workload/step_support.h"
#include "sim/engine/alike.h"
#include "sim/scenario/traced_plan.h"
#include "sim/search/kept_bytes.h"

namespace shardlens::sim {
namespace {

// Where microbatches may repeat, two show the times, but memory is usually the same only from the
// second one's end on.
constexpr int64_t kTimed = 2, kRepeating = 3;

// Whether the candidates differ only in their microbatch.
bool same_family(const Candidate& a, Candidate b) {
  b.batch = a.batch;
  b.accumulate = a.accumulate;
  return a == b;
}

// Whether operators differ in their units at most.
bool same_but_for_units(const Candidate& a, const Candidate& b) {
  return a.context == b.context && a.tensor == b.tensor && a.expert == b.expert &&
         a.checkpoint == b.checkpoint && a.cpu_offload == b.cpu_offload &&
         a.precision == b.precision && a.outer_units == b.outer_units && a.saves == b.saves;
}

bool same_operators(const Candidate& a, const Candidate& b) {
  const bool same_units =
      a.blocks.empty()
          ? a.blocks_per_unit == b.blocks_per_unit
          : std::equal(a.blocks.begin(), a.blocks.end(), b.blocks.begin(), b.blocks.end(),
                       [](const BlockChoice& x, const BlockChoice& y) {
                         return x.starts == y.starts && x.checkpointed == y.checkpointed;
                       });
  return same_units && a.blocks.empty() == b.blocks.empty() && same_but_for_units(a, b);
}

}  // namespace

// See [Note: Planned steps in common].
bool Evaluator::same_steps(const Candidate& a, const Candidate& b) const {
  const auto axes_of = [this](const Candidate& of) {  // which groups of data parallelism there are
    const bool shards = of.shard * of.context > 1;
    return std::tuple(shards, gathers(of), mesh_of(of, scenario_.world_size).replicate > 1);
  };
  return same_operators(a, b) && a.blocks == b.blocks && a.root_prefetch == b.root_prefetch &&
         axes_of(a) == axes_of(b);
}

void Evaluator::take_family(const Candidate& candidate) {
  if (family_ && same_family(*family_, candidate)) {
    return;
  }
  const std::optional<Candidate> before = std::exchange(family_, std::nullopt);
  others_.outline = nullptr;
  steps_.clear();
  if (!before || !same_steps(*before, candidate)) {
    for (auto& [key, of] : planned_) {
      if (const auto step = std::move(of.step); step.use_count() == 1) {
        spare_.push_back(std::move(*step));
      }
    }
    planned_.clear();
  }
  const bool same = before && same_operators(*before, candidate);
  plan::Plan plan;
  if (same && candidate.blocks.empty()) {
    plan = std::move(plan_.plan);
    set_run(plan, candidate, scenario_.world_size);
  } else {
    plan = plan_of(candidate, scenario_.plan, tree_, scenario_.world_size);
  }
  if (same) {
    plan_ = plan::Resolver(std::move(plan), std::move(plan_)).run_settings();
    scenario_.model->add_groups(plan_);
  } else {
    if (!before || !before->blocks.empty() || !candidate.blocks.empty() ||
        !same_but_for_units(*before, candidate)) {
      sized_.clear();
    }
    parts_.clear();
    const plan::ResolvedPlan smaller = std::exchange(
        plan_,
        scenario_.model->resolve(as_run_by(scenario_.step.program, plan), scenario_.world_size));
    merge_units(smaller);
  }
  require_simulator_support(plan_, target_);
  if (!same || before->shard != candidate.shard) {
    take_sizes();
  }
  family_ = candidate;
}

// Keeps the operators that were known for the plan `before`, if the units of the present one are
// merged from its.
void Evaluator::merge_units(const plan::ResolvedPlan& before) {
  for (auto& [key, of] : sized_) {
    std::optional<plan::Workload> merged = plan::merge_units(std::move(of.workload), before, plan_);
    if (!merged) {
      sized_.clear();
      return;
    }
    of.workload = std::move(*merged);
    of.outline = schedule::workload_outline(of.workload);
    for (size_t i = 0; i < of.memory.size(); ++i) {
      const size_t operators = of.workload.operators.size();
      of.memory[i].unit = i < operators ? of.workload.operators[i].unit
                                        : of.workload.communications[i - operators].unit;
    }
    of.known.clear();
  }
}

void Evaluator::take_sizes() {
  unit_sizes_ = plan::unit_sizes(plan_);
  ++sizes_taken_;
  optimizer_.reset();
  in_backward_ = plan::operators_in_backward(plan_, unit_sizes_, scenario_.step);
  kept_.clear();
  starts_.clear();
  unit_costs_ = unit_costs(plan_, unit_sizes_, *target_.costs, scenario_.step.program);
  add_steps(in_backward_, *target_.costs, unit_costs_);
  const KeptBytes kept = kept_bytes(plan_, unit_sizes_, scenario_.step.optimizer_states());
  least_bytes_ = kept.states + kept.gradients;
}

Evaluator::Sized& Evaluator::sized(const Candidate& candidate) {
  const std::pair key{candidate.batch, candidate.accumulate > 1};
  auto known = sized_.find(key);
  if (known == sized_.end()) {
    Sized out;  // added only when complete: step_costs() may throw
    out.workload = scenario_.model->workload(plan_, step_of(candidate.batch, candidate.accumulate));
    out.groups = plan_.groups;
    out.costs = step_costs(out.workload, plan_, *target_.costs);
    out.memory = operator_memory(out.workload);
    out.outline = schedule::workload_outline(out.workload);
    take_units(out);
    known = sized_.emplace(key, std::move(out)).first;
  }
  Sized& out = known->second;
  if (out.sizes_taken != sizes_taken_) {
    take_optimizer(out);
    take_units(out);
  }
  if (out.groups != plan_.groups) {
    plan::change_groups(out.groups, plan_, out.workload);
    out.groups = plan_.groups;
    out.costs.communications = communication_costs(out.workload, plan_, *target_.costs);
  }
  return out;
}

void Evaluator::take_units(Sized& out) const {
  out.workload.in_backward = in_backward_;
  out.costs.units = unit_costs_;
  out.sizes_taken = sizes_taken_;
}

// The operators of the optimizer depend on the family's shards.
void Evaluator::take_optimizer(Sized& out) {
  if (!optimizer_) {
    optimizer_ = plan::optimizer_operators(plan_, unit_sizes_, scenario_.step);
  }
  const double on_host = share_on_host(plan_, unit_sizes_);
  const size_t last = out.workload.operators.size() - optimizer_->size();
  for (size_t i = 0; i < optimizer_->size(); ++i) {
    const plan::Operator& op = (*optimizer_)[i];
    out.workload.operators[last + i] = op;
    out.costs.operators[last + i] = operator_cost(op, on_host, *target_.costs);
    out.costs.sums[last + i + 1] = out.costs.sums[last + i] + out.costs.operators[last + i];
    out.memory[last + i].handed[0] = op.saved;
  }
}

Evaluator::StepKey Evaluator::key_of(const Sized& of, Microbatches microbatches) const {
  return {family_->reshard, family_->backward_prefetch, family_->forward_prefetch, microbatches,
          of.workload.order.size()};
}

Evaluator::Planned& Evaluator::planned(const Sized& of, int64_t microbatches) {
  const size_t items = of.workload.order.size();
  const auto [it, fresh] = planned_.try_emplace(key_of(of, {microbatches, microbatches}));
  Planned& out = it->second;
  if (fresh && !(microbatches == 1 && take_first(of, out))) {
    schedule::PlannedStep storage;
    if (!spare_.empty()) {
      storage = std::move(spare_.back());
      spare_.pop_back();
    }
    const auto steps = steps_.try_emplace(items, of.workload, of.outline, plan_).first;
    out.step = steps->second.step(static_cast<int>(microbatches),
                                  scenario_.step.sync_every_microbatch, std::move(storage));
    out.repeated = repeated_microbatches(*out.step);
    out.outline = memory_outline(*out.step, of.workload.operators.size());
  }
  return out;
}

// The step of one microbatch, if that of two is known, without the second.
bool Evaluator::take_first(const Sized& of, Planned& out) const {
  const auto known = planned_.find(key_of(of, {kTimed, kTimed}));
  if (known == planned_.end() || !known->second.repeated || known->second.outline.tail == 0) {
    return false;
  }
  const Planned& two = known->second;
  out.step = two.step;
  out.left_out = {two.repeated->begin, two.repeated->tail};
  out.outline = with_microbatches(two.outline, 1);
  return true;
}

// The step of two microbatches, with the outline of three; nullptr: further ones do not repeat the
// second one.
Evaluator::Planned* Evaluator::repeating(const Sized& of) {
  const Planned& two = planned(of, kTimed);
  if (!two.repeated || two.outline.tail == 0) {
    return nullptr;
  }
  const auto [it, fresh] = planned_.try_emplace(key_of(of, {kTimed, kRepeating}));
  Planned& out = it->second;
  if (fresh) {
    out.step = two.step;
    out.repeated = two.repeated;
    out.outline = with_microbatches(two.outline, kRepeating);
  }
  return &out;
}

Evaluator::Part Evaluator::part_of(const MemoryOutline& outline) {
  MemoryOutline part = compute_part(outline);
  const auto same = std::find_if(parts_.begin(), parts_.end(),
                                 [&part](const Part& each) { return *each == part; });
  return same != parts_.end()
             ? *same
             : parts_.emplace_back(std::make_shared<const MemoryOutline>(std::move(part)));
}

plan::StepSettings Evaluator::step_of(int64_t batch, int64_t accumulate) const {
  plan::StepSettings out = scenario_.step;
  out.batch = batch;
  out.accumulate = accumulate;
  return out;
}

StepMemory Evaluator::memory(Sized& of,
                             Planned& planned,
                             const Target& target,
                             const PredictOptions& predict) {
  const MemoryOptions options = memory_options(target, scenario_.step, predict);
  const auto inputs = [&](const MemoryOutline& outline) {
    return MemoryInputs{of.workload, of.memory, plan_, unit_sizes_, planned.step->buckets, outline};
  };
  if (!family_->blocks.empty()) {
    return replay_.run(inputs(planned.outline), options);
  }
  if (planned.compute == nullptr) {
    planned.compute = part_of(planned.outline);
  }
  const auto [at, fresh] = starts_.try_emplace(planned.compute);
  ComputeStart& start = at->second;
  if (fresh) {
    start = replay_.compute_start(inputs(*planned.compute), options);
  }
  auto known = std::find_if(of.known.begin(), of.known.end(), [&](const KnownMemory& each) {
    return each.part == planned.compute && same_memory(each.memory, each.start, start);
  });
  if (known == of.known.end()) {
    known = of.known.insert(
        known,
        {planned.compute, start, replay_.compute_memory(inputs(*planned.compute), options, start)});
  }
  const MemoryOutline& outline = planned.outline;
  std::optional<size_t> in_common;
  if (others_.outline != nullptr) {
    in_common = items_in_common(outline, *others_.outline);
  }
  if (!in_common) {
    others_ = {&outline, replay_.others_memory(inputs(outline), options, known->memory)};
    in_common = outline.items.size();
  }
  return replay_.figures(inputs(outline), options, start, known->memory, others_.memory,
                         *in_common);
}

Evaluator::Operators Evaluator::operators(const Candidate& candidate) {
  take_family(candidate);
  const Sized& of = sized(candidate);
  return {plan_, of.workload, unit_sizes_, of.costs, of.memory};
}

Outcome Evaluator::evaluate_unlimited(const Candidate& candidate) {
  ++evaluated_;
  return simulated(candidate, unlimited_);
}

Outcome Evaluator::evaluate(const Candidate& candidate) {
  ++evaluated_;
  Candidate prefetches = candidate;
  prefetches.backward_prefetch = true;
  const auto equal = std::find_if(kept_.begin(), kept_.end(), [&prefetches](const auto& each) {
    return each.first == prefetches;
  });
  if (equal != kept_.end()) {
    return equal->second;
  }
  const Outcome outcome = simulated(candidate, target_);
  if (scenario_.plan.dialect == plan::Dialect::kFsdp2 && !candidate.reshard &&
      candidate.backward_prefetch) {
    kept_.emplace_back(candidate, outcome);
  }
  return outcome;
}

Outcome Evaluator::simulated(const Candidate& candidate, const Target& target) {
  take_family(candidate);
  plan::require_step_support(plan_, step_of(candidate.batch, candidate.accumulate));
  if (target.memory > 0 && least_bytes_ > target.memory) {
    return {.peak_reserved = least_bytes_, .fits = false};
  }
  const int64_t planned = std::min<int64_t>(candidate.accumulate, kPlannedMicrobatches);
  std::optional<StepPrediction> out;
  if (planned >= kRepeating && repeats_) {
    out = predicted(candidate, {kTimed, kRepeating}, target);
  }
  if (!out) {
    out = predicted(candidate, {planned, planned}, target);
  }
  if (!out) {
    out = predicted(candidate, {candidate.accumulate, candidate.accumulate}, target);
  }
  return {.figures = out->figures,
          .peak_reserved = out->memory.peak_reserved,
          .peak_allocated = out->memory.peak_allocated,
          .fits = out->memory.fits};
}

std::optional<StepPrediction> Evaluator::predicted(const Candidate& candidate,
                                                   Microbatches microbatches,
                                                   const Target& target) {
  Sized& of = sized(candidate);
  const int64_t counted = std::min<int64_t>(candidate.accumulate, kPlannedMicrobatches);
  plan::require_step_size(of.workload, std::max(counted, microbatches.outlined),
                          plan::kMostSearchedOperators);
  const bool all_outlined = microbatches.timed == microbatches.outlined;
  Planned* const plan = all_outlined ? &planned(of, microbatches.timed) : repeating(of);
  if (plan == nullptr) {
    return std::nullopt;
  }
  PredictOptions options;
  options.list_alive = false;
  options.simulation.host = host_;
  options.simulation.waits_for_loss = scenario_.waits_for_loss;
  options.simulation.more_microbatches = candidate.accumulate - microbatches.timed;
  options.simulation.keep_times = options.simulation.more_microbatches > 0;
  options.simulation.repeated = plan->repeated;
  options.simulation.left_out = plan->left_out;
  const PricedStep step = PricedStep::borrowed(of.workload, plan_, *plan->step, of.costs);
  SimulatedStep simulated = simulate(step, options.simulation);
  if (!simulated.alike) {
    return std::nullopt;
  }
  options.simulation.more_microbatches = candidate.accumulate - microbatches.outlined;
  StepPrediction out = figures_of(std::move(simulated), memory(of, *plan, target, options), step,
                                  target, step_of(candidate.batch, candidate.accumulate));
  return out.alike ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace shardlens::sim
