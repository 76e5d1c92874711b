#include "core/composable/contract.h"

#include <algorithm>
#include <unordered_set>

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include "core/base/error.h"
#include "core/base/show.h"
#include "core/composable/class_name.h"

namespace shardlens::composable {
namespace {

using Names = std::vector<std::string>;

struct Fqns {
  Names parameters, buffers, modules;
};

Fqns fqns_of(const torch::nn::Module& module) {
  return {module.named_parameters().keys(), module.named_buffers().keys(),
          module.named_modules().keys()};
}

// The names in `a` that are not in `b`, in the order of `a`.
Names difference(const Names& a, const Names& b) {
  const std::unordered_set<std::string> known(b.begin(), b.end());
  Names only;
  std::copy_if(a.begin(), a.end(), std::back_inserter(only),
               [&](const std::string& name) { return !known.contains(name); });
  return only;
}

void check_names(const std::string& what, const Names& before, const Names& after) {
  if (before == after) {
    return;
  }
  const Names gone = difference(before, after);
  const Names added = difference(after, before);
  if (!gone.empty() || !added.empty()) {
    throw UsageError(show(
        "{}Composable distributed API implementations cannot modify FQNs.\nFQNs only in original: "
        "{{{}}}\nFQNs only in new: {{{}}}",
        what, show_joined(gone, ", "), show_joined(added, ", ")));
  }
  throw UsageError(show(
      "{}Composable distributed API implementations cannot modify the order of FQNs.\nOriginal "
      "FQNs: {}\nNew FQNs: {}",
      what, show_joined(before, ", "), show_joined(after, ", ")));
}

// Checks one category for all modules before the next category, as PyTorch does.
void check_fqns(const std::vector<Fqns>& before, const Modules& after) {
  std::vector<Fqns> now;
  for (const auto& module : after) {
    now.push_back(fqns_of(*module));
  }
  const struct {
    const char* what;
    Names Fqns::*names;
  } categories[] = {{"Checking parameters: ", &Fqns::parameters},
                    {"Checking buffers: ", &Fqns::buffers},
                    {"Checking modules: ", &Fqns::modules}};
  for (const auto& category : categories) {
    for (size_t i = 0; i < before.size(); ++i) {
      check_names(category.what, before[i].*category.names, now[i].*category.names);
    }
  }
}

// Adds the registry entries of one application; the destructor removes them unless complete() was
// called.
class Application {
 public:
  Application(const Api& api, const std::shared_ptr<State>& state)
      : item_(std::make_shared<RegistryItem>(RegistryItem{&api, state})), state_(state) {}
  Application(const Application&) = delete;
  Application& operator=(const Application&) = delete;
  ~Application() {
    if (!completed_) {
      for (const auto& module : modules_) {
        detail::remove_from_registry(module, item_);
      }
      erase_module_states(*state_);
    }
  }
  void add(const std::shared_ptr<torch::nn::Module>& module) {
    detail::add_to_registry(module, item_);
    modules_.push_back(module);
  }
  void complete() { completed_ = true; }

 private:
  std::shared_ptr<const RegistryItem> item_;
  std::shared_ptr<State> state_;
  Modules modules_;
  bool completed_ = false;
};

}  // namespace

Modules root_modules(const Modules& modules) {
  std::unordered_set<const torch::nn::Module*> below;
  for (const auto& module : modules) {
    for (const auto& each : module->modules(/*include_self=*/false)) {
      below.insert(each.get());
    }
  }
  Modules roots;
  std::copy_if(modules.begin(), modules.end(), std::back_inserter(roots),
               [&](const auto& module) { return !below.contains(module.get()); });
  return roots;
}

Modules apply(const Api& api,
              const Modules& modules,
              const std::shared_ptr<State>& state,
              const Body& body,
              const std::string& fqn) {
  SHARDLENS_CHECK(state != nullptr, "an API needs a state");
  if (modules.empty() || std::count(modules.begin(), modules.end(), nullptr) > 0) {
    throw UsageError(api.name + ": expected at least one module, and no null pointer");
  }
  const Modules roots = root_modules(modules);
  Application application(api, state);
  std::vector<Fqns> before;
  for (const auto& module : roots) {
    require_once(api, *module, fqn);
    application.add(module);
    before.push_back(fqns_of(*module));
  }

  Modules updated = body(modules);
  if (updated.empty()) {
    updated = modules;
  }
  const Modules after = root_modules(updated);
  if (after.size() != roots.size()) {
    throw UsageError(
        show("{} should return the same number of modules as input modules: {} given, {} returned",
             api.name, roots.size(), after.size()));
  }
  check_fqns(before, after);
  for (const auto& module : roots) {
    if (auto* owner = dynamic_cast<StateOwner*>(module.get())) {
      owner->own(state);
    }
  }
  application.complete();
  return updated;
}

void require_once(const Api& api, const torch::nn::Module& module, const std::string& fqn) {
  if (has_api(module, api.name)) {
    throw UsageError(show(
        "Each distinct composable distributed API can only be applied to a module once. {} has "
        "already been applied to the following module: {}",
        api.name, described(module, fqn)));
  }
}

void require_forward(const Api& api, const torch::nn::Module& module, const std::string& fqn) {
  if (dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
      dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr) {
    throw UsageError(api.name + " does not support containers that do not implement forward: " +
                     described(module, fqn));
  }
}

}  // namespace shardlens::composable
