#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "sim/engine/machine.h"

namespace shardlens::sim {

// Adds the plan's communicators to a machine of this many ranks: one for each group of ranks.
// Returns those of each rank, by mesh::GroupId.
[[nodiscard]] std::vector<std::vector<uint32_t>> add_communicators(Machine& machine,
                                                                   const plan::ResolvedPlan& plan,
                                                                   uint32_t ranks);

}  // namespace shardlens::sim
