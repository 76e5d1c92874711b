#include "core/plan/step_settings.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::plan {

std::string_view name_of(Optimizer optimizer) {
  return optimizer == Optimizer::kAdamW ? "adamw" : "sgd";
}

std::string_view name_of(OptimizerImpl impl) {
  return impl == OptimizerImpl::kFused ? "fused" : "foreach";
}

void require_valid(const StepSettings& settings, std::string_view source) {
  for (const auto& [name, value] : {std::pair{"batch", settings.batch},
                                    {"seq", settings.seq.value_or(1)},
                                    {"accumulate", settings.accumulate}}) {
    if (value < 1) {
      throw InputError(std::string(source), fmt::format("{} {}: expected at least 1", name, value));
    }
  }
  if (!(settings.expert_skew >= 0)) {
    throw InputError(std::string(source), "expert_skew: expected 0 (balanced) or more");
  }
}

}  // namespace shardlens::plan
