#pragma once

#include "core/model/model_config.h"
#include "core/plan/resolved_plan.h"
#include "core/workload/step_settings.h"

namespace shardlens::plan {

// Errors  InputError if one rank's part of the model cannot be described on the plan's mesh: with
//         the axis, why, and the sizes of the axis that can be.
void require_mesh(const ModelConfig& config,
                  const ResolvedPlan& plan,
                  const StepSettings& settings);

}  // namespace shardlens::plan
