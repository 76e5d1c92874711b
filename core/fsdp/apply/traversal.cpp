#include "core/fsdp/apply/traversal.h"

#include <iterator>
#include <unordered_set>

#include <torch/nn/module.h>

#include "core/composable/registry.h"

namespace shardlens::fsdp {
bool composes_with_fsdp(const torch::nn::Module& module) {
  return !composable::has_api(module, "replicate");
}

bool is_fully_sharded(const torch::nn::Module& module) {
  return composable::has_api(module, fully_shard_api().name);
}

std::vector<StateWithModule> fsdp_states_with_modules(
    const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<StateWithModule> found;
  std::unordered_set<const FsdpState*> states;
  std::unordered_set<const torch::nn::Module*> visited;
  std::vector<std::shared_ptr<torch::nn::Module>> stack{root};
  while (!stack.empty()) {
    const std::shared_ptr<torch::nn::Module> module = std::move(stack.back());
    stack.pop_back();
    // Marked as visited when it is popped: before that, several parents may push it.
    if (!visited.insert(module.get()).second || !composes_with_fsdp(*module)) {
      continue;
    }
    auto state = module_fsdp_state(*module);
    if (state != nullptr && states.insert(state.get()).second) {
      found.push_back({std::move(state), module});
    }
    auto children = module->children();
    std::move(children.rbegin(), children.rend(), std::back_inserter(stack));
  }
  return found;
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
