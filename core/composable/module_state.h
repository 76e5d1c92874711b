#pragma once

#include <memory>

namespace torch::nn {
class Module;
}

namespace shardlens::composable {

// Base of what an API such as fully_shard or replicate keeps about the modules it manages.
class State {
 public:
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  virtual ~State() = default;
};

// The global mapping from a module to the state that manages it: weak on both sides, so it keeps
// neither alive, and an entry dies with its module. Threads  any; guarded by one lock. Source
// torch/distributed/_composable_state.py (PyTorch PR 89147).

// Errors: UsageError if the module has a state already.
void insert_module_state(const std::shared_ptr<torch::nn::Module>& module,
                         const std::shared_ptr<State>& state);

// The state that manages `module`, or null. Never creates or changes anything.
// Errors: RuntimeFault if the state has been destroyed while the module lives.
[[nodiscard]] std::shared_ptr<State> module_state(const torch::nn::Module& module);

// The same if it is a T, else null: module_state_as<fsdp::FsdpState>(m) is PyTorch's
// _get_module_fsdp_state.
template <typename T>
[[nodiscard]] std::shared_ptr<T> module_state_as(const torch::nn::Module& module) {
  return std::dynamic_pointer_cast<T>(module_state(module));
}

}  // namespace shardlens::composable
