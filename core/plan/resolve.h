#pragma once

#include <cstdint>

#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// mesh.shard 1 without mesh.replicate means no_shard: replicate = world size. A sub-mesh of all
// ranks is resolved to `true`, one of a single rank to `false`. Wildcards do not match ModuleLists,
// which have no forward; naming one is an error. Errors: InputError with JSON pointer for an
// impossible mesh, a glob without match, a module matched by two entries, a parameter in no unit, a
// tied parameter in two units, a name in a prefetch list that is not a unit, a sub-mesh that does
// not divide shard, or unshard_in_backward false for a unit whose backward needs its parameters.
[[nodiscard]] ResolvedPlan resolve(const Plan& plan, const ModuleTree& tree, int64_t world_size);

// Throws InputError naming the key if the plan needs something that the engine does not support
// ("…: not supported by the engine yet").
void require_engine_support(const ResolvedPlan& plan);

}  // namespace shardlens::plan
