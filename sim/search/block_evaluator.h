#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/plan/unit_sizes.h"
#include "core/schedule/planned/workload_outline.h"
#include "core/workload/workload.h"
#include "sim/engine/step_costs.h"
#include "sim/memory/memory_replay.h"
#include "sim/memory/operator_memory.h"
#include "sim/scenario/scenario.h"
#include "sim/search/block_plan.h"
#include "sim/search/outcome.h"

namespace shardlens::sim {

// Predicts plans whose blocks have settings of their own, with the results of evaluate(). The
// operators, which do not depend on what is kept after forward or prefetched, are computed again
// only if a plan has others than the plan before it.
//
// Threads  an object must be used by one thread at a time.
class BlockEvaluator {
 public:
  // Both must outlive the evaluator. `target`: the scenario's machine, possibly with less memory.
  BlockEvaluator(const Scenario& scenario, const Target& target);

  // Errors: InputError as evaluate().
  [[nodiscard]] Outcome evaluate(const PlanFrame& frame, const BlockChoices& choices);
  // The same without a limit of memory.
  [[nodiscard]] Outcome evaluate_unlimited(const PlanFrame& frame, const BlockChoices& choices);

  // What runs under a plan.
  struct Operators {
    plan::ResolvedPlan plan;
    plan::Workload workload;  // one microbatch
    schedule::WorkloadOutline outline;
    std::vector<plan::UnitSize> sizes;
    StepCosts costs;  // of the operators; those of the units are of the present plan
    std::vector<OperatorMemory> memory;
  };
  // The reference is valid until the next call.
  [[nodiscard]] const Operators& operators(const PlanFrame& frame, const BlockChoices& choices);

  [[nodiscard]] const Scenario& scenario() const { return scenario_; }
  [[nodiscard]] const Target& target() const { return target_; }
  [[nodiscard]] size_t evaluated() const { return evaluated_; }

 private:
  [[nodiscard]] plan::StepSettings step_of(const PlanFrame& frame, int64_t accumulate) const;
  [[nodiscard]] bool same_operators(const PlanFrame& frame, const BlockChoices& choices) const;
  [[nodiscard]] Outcome simulated(const PlanFrame& frame,
                                  const BlockChoices& choices,
                                  const Target& target);
  [[nodiscard]] StepPrediction predicted(const PlanFrame& frame,
                                         int64_t microbatches,
                                         const Target& target);

  const Scenario& scenario_;
  const Target& target_;
  Target unlimited_;
  HostMode host_;
  std::optional<std::pair<PlanFrame, BlockChoices>> of_;  // whose operators are known
  Operators operators_;
  MemoryReplay replay_;
  size_t evaluated_ = 0;
};

}  // namespace shardlens::sim
