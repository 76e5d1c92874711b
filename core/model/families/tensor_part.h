#pragma once

#include "core/model/model_config.h"
#include "core/plan/resolved_plan.h"
#include "core/workload/step_settings.h"

namespace shardlens::plan {

// Errors  InputError if the model, the plan's styles or the settings cannot be divided along the
//         plan's axis `tensor`, with the sizes of the axis that can.
void require_tensor_part(const ModelConfig& config,
                         const ResolvedPlan& plan,
                         const StepSettings& settings);

// `config` with what one rank of the plan's axis `tensor` runs: its part of the heads, of the MLP
// and, with loss_parallel, of the vocabulary's logits. The same as `config` without that axis.
[[nodiscard]] ModelConfig tensor_part(const ModelConfig& config, const ResolvedPlan& plan);

}  // namespace shardlens::plan
