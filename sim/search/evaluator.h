#pragma once

#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/plan/unit_sizes.h"
#include "core/schedule/planned/steady_step.h"
#include "core/tree/module_tree.h"
#include "core/workload/workload.h"
#include "sim/engine/repeated.h"
#include "sim/engine/simulator.h"
#include "sim/engine/step_costs.h"
#include "sim/memory/memory_replay.h"
#include "sim/memory/operator_memory.h"
#include "sim/scenario/scenario.h"
#include "sim/search/candidates.h"
#include "sim/search/outcome.h"

namespace shardlens::sim {

// The one evaluation of a candidate in a search: time and memory, equal to those of evaluate() for
// scenario_of(candidate, scenario). Predicts candidates one after the other, but computes what
// successive candidates share only once. So similar candidates should follow each other:
// - Candidates that differ only in their microbatch share a plan.
// - Candidates with the same units and checkpoints share operators and their durations. After
//   candidates with smaller units, only the units of the operators change.
// - They also share the replay of the other streams, where operators have no part: that of the most
//   microbatches has those of fewer.
// - Candidates with the same allocations on the compute stream, such as plans that differ only in
//   when they gather or over how many ranks they shard, share the replay of that stream.
// - Of more than two microbatches, further ones are not simulated if they only add time
//   (sim/engine/repeated.h), so all such candidates share the planned step of two; otherwise, of
//   more than four, further middle ones are not if the two in the middle take the same times
//   (sim/engine/alike.h).
// - Candidates with settings of single blocks share operators and durations as long as the same
//   blocks begin units and are checkpointed, and no replay.
// - With FSDP2, units that stay gathered until backward have nothing to prefetch there, so
//   candidates that then differ only in backward prefetch share one outcome. (Not with FSDP1, whose
//   rate limiter waits all the same.)
//
// [Note: Planned steps in common] A schedule depends on whether there is a shard axis and a
// replicate axis, not on their lengths. So plans that differ only in these lengths share their
// planned steps, for the same number of microbatches.
//
// Threads     an object must be used by one thread at a time.
// Complexity  usually proportional to the actions and operators of at most four microbatches.
class Evaluator {
 public:
  // Both must outlive the evaluator. `target`: the scenario's machine, possibly with less memory.
  Evaluator(const Scenario& scenario, const Target& target)
      : scenario_(scenario),
        tree_(scenario.model->tree()),
        target_(target),
        unlimited_(target),
        host_(scenario.host.value_or(scenario.machine->host())),
        repeats_(scenario.plan.dialect == plan::Dialect::kFsdp2 &&
                 scenario.step.sync_every_microbatch && host_ == HostMode::kAhead &&
                 !scenario.waits_for_loss) {
    unlimited_.memory = 0;
  }

  // Errors: InputError as evaluate().
  [[nodiscard]] Outcome evaluate(const Candidate& candidate);
  // The same without a limit of memory.
  [[nodiscard]] Outcome evaluate_unlimited(const Candidate& candidate);

  // What runs under a candidate's plan, in one microbatch.
  struct Operators {
    const plan::ResolvedPlan& plan;
    const plan::Workload& workload;
    const std::vector<plan::UnitSize>& sizes;
    const StepCosts& costs;
    const std::vector<OperatorMemory>& memory;
  };
  // Valid until the next call. Errors: InputError as evaluate().
  [[nodiscard]] Operators operators(const Candidate& candidate);

  [[nodiscard]] const Scenario& scenario() const { return scenario_; }
  [[nodiscard]] const Target& target() const { return target_; }
  [[nodiscard]] size_t evaluated() const { return evaluated_; }

 private:
  using Part = std::shared_ptr<const MemoryOutline>;  // compute's; equal parts are one object
  struct KnownMemory {
    Part part;
    ComputeStart start;
    ComputeMemory memory;
  };
  struct KnownOthers {
    const MemoryOutline* outline = nullptr;  // of planned_; nullptr: not known
    OthersMemory memory;
  };
  // Operators for one microbatch size, under any plan of the same units and checkpoints.
  struct Sized {
    plan::Workload workload;
    std::vector<mesh::Group> groups;  // of the plan that the workload's communications have ids of
    schedule::WorkloadOutline outline;
    StepCosts costs;
    std::vector<OperatorMemory> memory;
    std::vector<KnownMemory> known;
    size_t sizes_taken = 0;  // of which sizes its optimizer's operators and units' costs are
  };
  struct Microbatches {
    int64_t timed = 0;     // in the planned step
    int64_t outlined = 0;  // in the outline of its memory, at least as many
    friend auto operator<=>(const Microbatches&, const Microbatches&) = default;
  };
  // Key of a planned step, for given units, checkpoints and axes. Divided layers run other
  // operators with a single sample, so workloads of other batches may have another number of items.
  struct StepKey {
    bool reshard, backward_prefetch;
    int64_t forward_prefetch;
    Microbatches microbatches;
    size_t items;
    friend auto operator<=>(const StepKey&, const StepKey&) = default;
  };
  struct Planned {
    std::shared_ptr<schedule::PlannedStep> step;
    std::optional<RepeatedMicrobatches> repeated;
    ItemRange left_out;  // of `step`
    MemoryOutline outline;
    Part compute;  // nullptr: not needed yet
  };

  [[nodiscard]] Outcome simulated(const Candidate& candidate, const Target& target);
  // Prediction with some of the candidate's microbatches; nullopt: the others are not known to be
  // like them.
  [[nodiscard]] std::optional<StepPrediction> predicted(const Candidate& candidate,
                                                        Microbatches microbatches,
                                                        const Target& target);
  [[nodiscard]] bool same_steps(const Candidate& a, const Candidate& b) const;
  void take_family(const Candidate& candidate);
  void merge_units(const plan::ResolvedPlan& before);
  void take_sizes();
  [[nodiscard]] Sized& sized(const Candidate& candidate);
  void take_units(Sized& out) const;
  void take_optimizer(Sized& out);
  [[nodiscard]] StepKey key_of(const Sized& of, Microbatches microbatches) const;
  [[nodiscard]] Planned& planned(const Sized& of, int64_t microbatches);
  [[nodiscard]] bool take_first(const Sized& of, Planned& out) const;
  [[nodiscard]] Planned* repeating(const Sized& of);
  [[nodiscard]] Part part_of(const MemoryOutline& outline);
  [[nodiscard]] StepMemory memory(Sized& of,
                                  Planned& planned,
                                  const Target& target,
                                  const PredictOptions& predict);
  // The scenario's step settings with these microbatches.
  [[nodiscard]] plan::StepSettings step_of(int64_t batch, int64_t accumulate) const;

  const Scenario& scenario_;
  const plan::ModuleTree& tree_;
  const Target& target_;
  Target unlimited_;
  HostMode host_;
  bool repeats_;  // microbatches may do the same (sim/engine/repeated.h): fewer are planned first
  std::optional<Candidate> family_;
  plan::ResolvedPlan plan_;
  size_t sizes_taken_ = 0;                                // counts the calls of take_sizes()
  std::optional<std::vector<plan::Operator>> optimizer_;  // nullopt: not needed since
  std::vector<plan::Operator> in_backward_;
  std::vector<UnitCosts> unit_costs_;
  std::vector<plan::UnitSize> unit_sizes_;
  Bytes least_bytes_ = 0;  // memory that any microbatch needs
  // Outcomes of candidates that keep parameters gathered after forward, for unit_sizes_.
  std::vector<std::pair<Candidate, Outcome>> kept_;
  // By batch, and whether gradients of several microbatches are added up; for the family's units
  // and checkpoints.
  std::map<std::pair<int64_t, bool>, Sized> sized_;
  std::map<StepKey, Planned> planned_;             // for the family's units, checkpoints and axes
  KnownOthers others_;                             // of the family: what was replayed last
  std::vector<Part> parts_;                        // for the family's units and checkpoints
  std::map<Part, ComputeStart> starts_;            // for unit_sizes_
  std::map<size_t, schedule::SteadySteps> steps_;  // of the family, by items of the workload
  std::vector<schedule::PlannedStep> spare_;       // storage of earlier families' steps
  MemoryReplay replay_;
  size_t evaluated_ = 0;
};

}  // namespace shardlens::sim
