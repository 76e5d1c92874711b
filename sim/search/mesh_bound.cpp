#include "sim/search/mesh_bound.h"

#include <algorithm>
#include <vector>

#include "core/workload/communications.h"
#include "sim/scenario/predict.h"
#include "sim/search/kept_bytes.h"

namespace shardlens::sim {
namespace {

// Microbatches of a step that communicate.
struct Repeats {
  int64_t all = 1, reductions = 1;
};

// Time of the collectives of each communicator, by mesh::GroupId.
std::vector<Nanoseconds> time_of_groups(const Evaluator::Operators& of, const Repeats& repeats) {
  std::vector<Nanoseconds> out(of.plan.groups.size(), 0);
  const auto add = [&](mesh::GroupId group, int64_t times, const CollectiveCost& cost) {
    if (group != mesh::kNoGroup && of.plan.groups[group].size > 1) {
      out[group] += times * cost.run.alone;
    }
  };
  for (UnitId id = 0; id < of.plan.units.size(); ++id) {
    const plan::Unit& unit = of.plan.units[id];
    const UnitCosts& costs = of.costs.units[id];
    const bool shards = of.plan.groups[unit.gather].size > 1;
    // Otherwise units may stay whole between microbatches, and be reduced once.
    const bool each = of.plan.plan.backward_finalization == plan::Finalization::kAutomatic;
    const int64_t reductions = each ? repeats.reductions : 1;
    add(unit.gather, unit.reshard_after_backward && each ? repeats.all : 1, costs.all_gather);
    if (of.plan.is_frozen(id)) {
      continue;
    }
    add(unit.reduce, reductions, costs.reduce_scatter);
    add(unit.replicate, unit.requires_all_reduce ? reductions : 1,
        shards ? costs.all_reduce_shard : costs.all_reduce_full);
  }
  for (size_t i = 0; i < of.workload.communications.size(); ++i) {
    const plan::Communication& each = of.workload.communications[i];
    add(each.group, plan::sums_gradients(each) ? repeats.reductions : repeats.all,
        of.costs.communications[i].run);
  }
  return out;
}

Bytes least_memory(const Evaluator::Operators& of, const plan::StepSettings& step, bool repeats) {
  const KeptBytes kept = kept_bytes(of.plan, of.sizes, step.optimizer_states());
  Bytes out = kept.states + (repeats ? kept.gradients : 0);
  for (const OperatorMemory& each : of.memory) {
    if (each.kind == OperatorMemory::Kind::kForward && each.users > 0) {
      out += each.saved;
    }
  }
  return out;
}

}  // namespace

LeastStep least_step(Evaluator& evaluator, const Candidate& candidate) {
  const Evaluator::Operators of = evaluator.operators(candidate);
  const plan::StepSettings& step = evaluator.scenario().step;
  const Target& target = evaluator.target();
  const Repeats repeats{candidate.accumulate,
                        step.sync_every_microbatch ? candidate.accumulate : 1};
  const bool offloads = std::ranges::all_of(of.plan.units, [](const plan::Unit& unit) {
    return unit.cpu_offload || unit.parameters.empty();
  });
  Nanoseconds microbatch = 0, optimizer = 0;
  for (size_t i = 0; i < of.workload.operators.size(); ++i) {
    const OperatorCost& cost = of.costs.operators[i];
    if (of.workload.operators[i].phase == plan::Phase::kOptimizer) {
      optimizer += offloads ? std::max(cost.run.alone, cost.issue) : cost.run.alone;
    } else {
      microbatch += cost.run.alone;
    }
  }
  for (size_t i = 0; i < of.workload.communications.size(); ++i) {
    const plan::Communication& each = of.workload.communications[i];
    if (!each.waited_by && !plan::sums_gradients(each)) {
      microbatch += of.costs.communications[i].run.run.alone;
    }
  }
  const std::vector<Nanoseconds> groups = time_of_groups(of, repeats);
  const Nanoseconds communication = *std::ranges::max_element(groups);
  return {.duration = target.outside + target.outside_communication +
                      norm_communication(of.plan, target) + optimizer +
                      std::max(repeats.all * microbatch, communication),
          .reserved = least_memory(of, step, repeats.all > 1)};
}

}  // namespace shardlens::sim
