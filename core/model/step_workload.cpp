#include "core/model/step_workload.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/families/heads.h"
#include "core/model/families/model_family.h"
#include "core/model/model_file.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

Workload step_workload(const ModelConfig& config,
                       const ResolvedPlan& plan,
                       const StepSettings& settings) {
  if (settings.program == Program::kTorchtitan) {
    require_torchtitan(config);
  }
  if (config.file != nullptr) {
    return recorded_workload(config, plan, settings);
  }
  const bool images = config.patches > 0;
  const int64_t seq = images ? config.patches + 1 : tokens_of(settings);
  if (images) {
    require_valid(settings, "");
  } else if (seq > config.max_positions) {
    throw InputError(config.source, fmt::format("seq {} is longer than the model's {} positions",
                                                seq, config.max_positions));
  }
  if (std::ranges::none_of(plan.tree.parameters, &Parameter::requires_grad)) {
    throw InputError(plan.plan.source + "#/frozen_parameters",
                     "every parameter is frozen; expected at least one that is not frozen");
  }
  if (settings.expert_skew > 0 && config.experts.count == 0) {
    throw InputError(config.source, "expert_skew: the model has no experts");
  }
  WorkloadBuilder build(plan, settings.batch, seq);
  build.set_settings(settings);
  build.enter("");
  family_of(config).forward(build, config);
  const int64_t classes = images ? config.labels : outputs_of_head(config);
  const bool inside = settings.program == Program::kTransformers;  // the model returns the loss
  if (!inside) {
    build.leave();
  }
  if (classes > 0) {
    build.loss(classes);
  }
  if (inside) {
    build.leave();
  }
  build.finish_backward();
  build.optimizer(settings);
  return build.take();
}

}  // namespace shardlens::plan
