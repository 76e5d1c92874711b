#pragma once

#include "core/plan/resolved_plan.h"
#include "core/workload/step_settings.h"

namespace shardlens::plan {

// Throws InputError if a unit has optimizer_in_backward and a step with these settings needs its
// gradient for more than its own update: clipping by the norm of all gradients, microbatches whose
// reductions are added up, or the loss scaling of fp16.
void require_step_support(const ResolvedPlan& plan, const StepSettings& settings);

}  // namespace shardlens::plan
