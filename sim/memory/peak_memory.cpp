#include "sim/memory/peak_memory.h"

#include <limits>

#include "core/plan/unit_sizes.h"
#include "sim/memory/memory_replay.h"

namespace shardlens::sim {

std::string_view name_of(MemoryCategory category) {
  constexpr std::string_view kNames[] = {"parameters",  "gradients", "optimizer",
                                         "activations", "unsharded", "communication"};
  return kNames[static_cast<size_t>(category)];
}

StepMemory step_memory(const PricedStep& step, const MemoryOptions& options) {
  const std::vector<OperatorMemory> operators = operator_memory(*step.workload);
  const std::vector<plan::UnitSize> sizes = plan::unit_sizes(*step.plan);
  const MemoryOutline outline = memory_outline(*step.planned, step.workload->operators.size());
  const MemoryInputs inputs{*step.workload,        operators, *step.plan, sizes,
                            step.planned->buckets, outline};
  MemoryReplay replay;
  StepMemory out = replay.run(inputs, options);
  if (!out.fits) {
    // What was allocated until an allocation failed says nothing about what the plan needs.
    MemoryOptions unlimited = options;
    unlimited.capacity = std::numeric_limits<Bytes>::max();
    out = replay.run(inputs, unlimited);
    out.fits = false;
  }
  if (options.keep_history) {
    replay.take_history(inputs, *step.planned, out);
  }
  return out;
}

}  // namespace shardlens::sim
