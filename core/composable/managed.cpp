#include "core/composable/managed.h"

#include "core/composable/module_map.h"

namespace shardlens::composable {
namespace {

ModuleMap<bool>& use_orig_params_of() {
  static auto& instance = *new ModuleMap<bool>;
  return instance;
}

}  // namespace

void annotate_managed_modules(const std::shared_ptr<torch::nn::Module>& module,
                              const std::unordered_set<const torch::nn::Module*>& ignored_modules,
                              bool use_orig_params) {
  for (const auto& each : module->modules()) {
    if (!ignored_modules.contains(each.get())) {
      use_orig_params_of().set(each, use_orig_params);
    }
  }
}

bool is_managed(const torch::nn::Module& module) {
  return use_orig_params_of().find(module).has_value();
}

bool managed_use_orig_params(const torch::nn::Module& module) {
  return use_orig_params_of().find(module).value_or(false);
}

}  // namespace shardlens::composable
