#pragma once

#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/plan/module_tree.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/unit_sizes.h"
#include "core/plan/workload.h"
#include "core/schedule/steady_step.h"
#include "sim/engine/step_costs.h"
#include "sim/memory/memory_replay.h"
#include "sim/scenario/scenario.h"
#include "sim/search/candidates.h"
#include "sim/search/outcome.h"

namespace shardlens::sim {

// Predicts candidates one after the other, as evaluate() does each, but what neighbours have in
// common is made once: those that differ in their microbatch alone share a plan; those with the
// same units and checkpoints share operators and their durations; those that allocate the same on
// the compute stream, as plans do that differ in when they gather, share its replay. Of more than
// four microbatches the middle ones are not simulated again if they change nothing but time
// (sim/engine/alike.h). FSDP2's units that stay gathered until backward have nothing to prefetch
// there: such candidates that differ in backward prefetch are one (FSDP1's limiter waits even so).
// So candidates that are alike should follow each other.
//
// [Note: Planned steps in common] A schedule asks whether there is a shard axis and a replicate
// axis, not how long they are. So plans that differ in these lengths alone have their planned steps
// in common, for as many microbatches.
//
// Threads     one thread's.
// Complexity  time in proportion to the actions and operators of at most four microbatches, mostly.
class Evaluator {
 public:
  // Both must outlive it. `target`: the scenario's machine, perhaps with another memory.
  Evaluator(const Scenario& scenario, const Target& target)
      : scenario_(scenario),
        tree_(scenario.model->tree()),
        target_(target),
        host_(scenario.host.value_or(scenario.machine->host())) {}

  // Errors: InputError as evaluate().
  [[nodiscard]] Outcome evaluate(const Candidate& candidate);

 private:
  // What compute's pool does under one part of an outline (memory_outline.h).
  struct KnownMemory {
    std::shared_ptr<const MemoryOutline> part;
    ComputeMemory memory;
  };
  // Operators at one microbatch, under any plan of the same units and checkpoints.
  struct Sized {
    plan::Workload workload;
    schedule::WorkloadOutline outline;
    StepCosts costs;
    std::vector<OperatorMemory> memory;
    std::vector<KnownMemory> known;  // under the family's sizes
  };
  // Beside units, checkpoints and which axes there are.
  struct StepKey {
    bool reshard, backward_prefetch;
    int64_t forward_prefetch, microbatches;
    friend auto operator<=>(const StepKey&, const StepKey&) = default;
  };
  struct Planned {
    schedule::PlannedStep step;
    MemoryOutline outline;
    std::shared_ptr<const MemoryOutline> compute;  // its part; equal ones are one object
  };

  [[nodiscard]] Outcome simulated(const Candidate& candidate);
  // With so many of the candidate's microbatches planned one by one.
  [[nodiscard]] StepPrediction predicted(const Candidate& candidate, int64_t microbatches);
  [[nodiscard]] bool same_steps(const Candidate& a, const Candidate& b) const;
  void take_family(const Candidate& candidate);
  void take_sizes();
  [[nodiscard]] Sized& sized(int64_t batch);
  [[nodiscard]] const Planned& planned(const Sized& of, int64_t accumulate);
  [[nodiscard]] StepMemory memory(Sized& of, const Planned& planned, const PredictOptions& options);
  // The scenario's step, divided as the candidate says.
  [[nodiscard]] plan::StepSettings step_of(int64_t batch, int64_t accumulate) const;

  const Scenario& scenario_;
  const plan::ModuleTree& tree_;
  const Target& target_;
  HostMode host_;
  std::optional<Candidate> family_;
  plan::ResolvedPlan plan_;
  plan::Operator optimizer_;
  std::vector<UnitCosts> unit_costs_;
  std::vector<plan::UnitSize> unit_sizes_;
  Bytes least_bytes_ = 0;                            // that any microbatch needs
  std::vector<std::pair<Candidate, Outcome>> kept_;  // after forward, with those sizes
  std::map<int64_t, Sized> sized_;      // by batch, of the family's units and checkpoints
  std::map<StepKey, Planned> planned_;  // of those and the axes
  std::vector<std::shared_ptr<const MemoryOutline>> parts_;  // of planned_
  std::optional<schedule::SteadySteps> steps_;               // of the family
  std::vector<schedule::PlannedStep> spare_;                 // of families before
  MemoryReplay replay_;
};

}  // namespace shardlens::sim
