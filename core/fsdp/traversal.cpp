#include "core/fsdp/traversal.h"

#include <unordered_set>

#include <torch/nn/module.h>

#include "core/composable/registry.h"

namespace shardlens::fsdp {
namespace {

struct Walk {
  std::vector<StateWithModule> found;
  std::unordered_set<const torch::nn::Module*> modules;
  std::unordered_set<const FsdpState*> states;

  void visit(const std::shared_ptr<torch::nn::Module>& module) {
    if (!modules.insert(module.get()).second || composable::has_api(*module, "replicate")) {
      return;
    }
    if (auto state = composable::module_state_as<FsdpState>(*module);
        state != nullptr && states.insert(state.get()).second) {
      found.push_back({std::move(state), module});
    }
    for (const auto& child : module->children()) {
      visit(child);
    }
  }
};

}  // namespace

std::vector<StateWithModule> fsdp_states_with_modules(
    const std::shared_ptr<torch::nn::Module>& root) {
  Walk walk;
  walk.visit(root);
  return std::move(walk.found);
}

std::vector<std::shared_ptr<FsdpState>> fsdp_states(
    const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<std::shared_ptr<FsdpState>> states;
  for (StateWithModule& each : fsdp_states_with_modules(root)) {
    states.push_back(std::move(each.state));
  }
  return states;
}

std::vector<std::shared_ptr<FsdpState>> fsdp_root_states(
    const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<std::shared_ptr<FsdpState>> states = fsdp_states(root);
  std::erase_if(states, [](const auto& state) { return !state->is_root(); });
  return states;
}

std::vector<FlatParamHandle*> fsdp_handles(const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<FlatParamHandle*> handles;
  for (const auto& state : fsdp_states(root)) {
    if (state->handle() != nullptr) {
      handles.push_back(state->handle());
    }
  }
  return handles;
}

}  // namespace shardlens::fsdp
