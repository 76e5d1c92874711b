#include "sim/memory/step_memory.h"

#include "core/plan/unit_sizes.h"
#include "sim/memory/memory_replay.h"

namespace shardlens::sim {

std::string_view name_of(MemoryCategory category) {
  constexpr std::string_view kNames[] = {"parameters",  "gradients", "optimizer",
                                         "activations", "unsharded", "communication"};
  return kNames[static_cast<size_t>(category)];
}

StepMemory step_memory(const plan::Workload& workload,
                       const plan::ResolvedPlan& plan,
                       const schedule::PlannedStep& step,
                       const MemoryOptions& options) {
  const std::vector<OperatorMemory> operators = operator_memory(workload);
  const std::vector<plan::UnitSize> sizes = plan::unit_sizes(plan);
  const MemoryOutline outline = memory_outline(step);
  MemoryReplay replay;
  StepMemory out = replay.run({workload, operators, plan, sizes, step.buckets, outline}, options);
  if (options.keep_history) {
    out.history = replay.history(step);
  }
  return out;
}

}  // namespace shardlens::sim
