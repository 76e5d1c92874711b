#pragma once

#include <vector>

#include "core/base/units.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/unit_sizes.h"

namespace shardlens::sim {

// The bytes that a rank's device keeps between the operators of a step, whatever they are: shards
// of the parameters with the optimizer's states, and shards of the gradients that are not used in
// backward at once. Units with cpu_offload keep nothing there.
struct KeptBytes {
  Bytes states = 0, gradients = 0;
};

// `states`: numbers that the optimizer keeps of a parameter.
[[nodiscard]] KeptBytes kept_bytes(const plan::ResolvedPlan& plan,
                                   const std::vector<plan::UnitSize>& sizes,
                                   int64_t states);

}  // namespace shardlens::sim
