#include "core/module/hook_point.h"

#include "core/base/error.h"
#include "core/composable/class_name.h"

namespace shardlens::module {

HookPoint& hook_point(const composable::Api& api,
                      torch::nn::Module& module,
                      const std::string& fqn) {
  composable::require_forward(api, module, fqn);
  auto* point = dynamic_cast<HookPoint*>(&module);
  if (point == nullptr) {
    throw UsageError(api.name + ": module " + composable::described(module, fqn) +
                     " has no hooks; declare it with SHARDLENS_MODULE instead of TORCH_MODULE");
  }
  return *point;
}

}  // namespace shardlens::module
