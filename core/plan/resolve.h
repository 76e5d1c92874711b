#pragma once

#include <cstdint>

#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// mesh.shard 1 without mesh.replicate is no_shard: replicate = world size. A sub-mesh of all ranks
// is `true`, of one rank `false`. Wildcards pass over ModuleLists, which have no forward; naming
// one is an error. Errors: InputError with JSON pointer for an impossible mesh, a glob without
// match, a module matched by two entries, a parameter in no unit, a tied parameter in two units, a
// prefetch list naming no unit, a sub-mesh that does not divide shard, unshard_in_backward false of
// a unit whose backward needs its parameters.
[[nodiscard]] ResolvedPlan resolve(const Plan& plan, const ModuleTree& tree, int64_t world_size);

// InputError naming the key for what the engine cannot run yet ("…: not supported by the engine
// yet; simulate can").
void require_engine_support(const ResolvedPlan& plan);

}  // namespace shardlens::plan
