#pragma once

#include <cstdint>

#include "core/plan/resolved_plan.h"
#include "core/plan/step_settings.h"

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

// Throws InputError if a unit has optimizer_in_backward and a step with these settings needs its
// gradient for more than its own update: clipping by the norm of all gradients, microbatches whose
// reductions are added up, or the loss scaling of fp16.
void require_step_support(const ResolvedPlan& plan, const StepSettings& settings);

}  // namespace shardlens::plan
