#include "core/replicate/replicate.h"

#include <unordered_set>

#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/composable/class_name.h"
#include "core/composable/contract.h"
#include "core/composable/module_state.h"
#include "core/module/hook_point.h"

namespace shardlens::replicate {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

void require_free(const MarkedModule& marked) {
  composable::require_forward(replicate_api(), *marked.module, marked.fqn);
  composable::require_once(replicate_api(), *marked.module, marked.fqn);
  if (composable::has_api(*marked.module, "fully_shard")) {
    throw UsageError(
        "Cannot apply `replicate()` on a Module already managed by `fully_shard`: module " +
        composable::described(*marked.module, marked.fqn));
  }
}

// Collects the parameters that one replicated module reduces; see replicate().
struct Collector {
  const torch::nn::Module* root;
  std::unordered_set<const torch::nn::Module*> ignored;
  std::unordered_set<const c10::TensorImpl*> seen;  // already collected, or excluded
  std::vector<NamedParameter> found;

  [[nodiscard]] bool skipped(const torch::nn::Module& module) const {
    return ignored.contains(&module) || composable::has_api(module, "fully_shard") ||
           (&module != root && composable::has_api(module, "replicate"));
  }
  void visit(const torch::nn::Module& module, const std::string& prefix) {
    if (skipped(module)) {
      return;
    }
    for (const auto& each : module.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = each.value();
      if (tensor.requires_grad() && seen.insert(tensor.unsafeGetTensorImpl()).second) {
        found.push_back({prefix + each.key(), tensor});
      }
    }
    for (const auto& child : module.named_children()) {
      visit(*child.value(), prefix + child.key() + ".");
    }
  }
};

std::vector<NamedParameter> collect(const ModulePtr& root,
                                    const std::vector<std::weak_ptr<torch::nn::Module>>& ignored) {
  Collector collector{root.get(), {}, {}, {}};
  for (const auto& module : ignored) {
    collector.ignored.insert(module.lock().get());
  }
  // A parameter that is tied to a parameter of a skipped module belongs to that module.
  for (const ModulePtr& module : root->modules()) {
    if (collector.skipped(*module)) {
      for (const at::Tensor& parameter : module->parameters()) {
        collector.seen.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  collector.visit(*root, "");
  return std::move(collector.found);
}

// Maps a replicated module and its descendants to its state, except those that have another state.
void map_below(const ModulePtr& module, const std::shared_ptr<composable::State>& state) {
  for (const ModulePtr& each : module->modules()) {
    if (!composable::has_module_state(*each)) {
      composable::insert_module_state(each, state);
    }
  }
}

// The root's hooks own the state, so that it exists as long as the module. The first forward maps
// the descendants of `module` (if not null) to the state: until then, other APIs may be applied to
// submodules.
void register_hooks(module::HookPoint& point,
                    const std::shared_ptr<ReplicateState>& state,
                    const ModulePtr& module) {
  point.keep(point.register_pre_forward(
      [state, weak = std::weak_ptr(module)](module::TensorRefs& /*inputs*/) mutable {
        if (const auto root = weak.lock()) {
          map_below(root, state);
          weak.reset();
        }
        state->pre_forward();
      }));
  point.keep(point.register_post_forward(
      [state](module::TensorRefs& outputs) { state->post_forward(outputs); }));
}

}  // namespace

const composable::Api& replicate_api() {
  static const composable::Api api("replicate");
  return api;
}

std::shared_ptr<ReplicateState> replicate(const ModulePtr& module,
                                          const Options& options,
                                          std::span<const ModulePtr> ignored_modules) {
  SHARDLENS_CHECK(options.world != nullptr, "replicate needs a world");
  module::HookPoint& point = module::hook_point(replicate_api(), *module, "");
  const MarkedModule marked{"", module};
  require_free(marked);
  const std::weak_ptr<torch::nn::Module> weak = module;
  // Weak pointers, because an ignored module may own the module whose hooks own the state.
  const std::vector<std::weak_ptr<torch::nn::Module>> ignored(ignored_modules.begin(),
                                                              ignored_modules.end());
  const auto state = std::make_shared<ReplicateState>(options, weak, [weak, ignored]() {
    const auto root = weak.lock();
    return root == nullptr ? std::vector<NamedParameter>() : collect(root, ignored);
  });
  composable::apply(replicate_api(), {module}, state, [&](const composable::Modules& given) {
    if (!composable::has_module_state(*module)) {
      composable::insert_module_state(module, state);
    }
    register_hooks(point, state, module);
    return given;
  });
  return state;
}

std::shared_ptr<ReplicateState> replicate(const ModulePtr& root,
                                          std::span<const MarkedModule> modules,
                                          std::vector<NamedParameter> parameters,
                                          const Options& options) {
  SHARDLENS_CHECK(options.world != nullptr, "replicate needs a world");
  module::HookPoint& point = module::hook_point(replicate_api(), *root, "");
  composable::Modules members;
  for (const MarkedModule& marked : modules) {
    require_free(marked);
    members.push_back(marked.module);
  }
  const auto state = std::make_shared<ReplicateState>(
      options, root, [parameters = std::move(parameters)]() { return parameters; });
  composable::apply(replicate_api(), members, state, [&](const composable::Modules& given) {
    for (const ModulePtr& module : given) {
      map_below(module, state);
    }
    register_hooks(point, state, nullptr);
    return given;
  });
  return state;
}

}  // namespace shardlens::replicate
