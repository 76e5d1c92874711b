#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace shardlens::composable {

// Base class of the data that an API such as fully_shard or replicate stores about the modules it
// manages. A state must not own the modules that own it (StateOwner): neither would be destroyed.
class State {
 public:
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  virtual ~State() = default;
};

// Mixin of modules that can own the states of the APIs applied to them, as every Python module can:
// all modules with hooks (SHARDLENS_MODULE). For other modules the caller of the API owns the
// state.
class StateOwner {
 public:
  StateOwner() = default;
  StateOwner(const StateOwner&) = delete;  // a copy would own states that do not manage it
  StateOwner& operator=(const StateOwner&) = delete;
  virtual ~StateOwner() = default;
  void own(std::shared_ptr<State> state) { states_.push_back(std::move(state)); }

 private:
  std::vector<std::shared_ptr<State>> states_;
};

// The global mapping from a module to the state that manages it. It keeps neither module nor state
// alive; an entry disappears with its module.
//
// Threads     any; guarded by one lock.
// Source      torch/distributed/_composable_state.py (PyTorch PR 89147).

// Errors: UsageError if the module has a state already.
void insert_module_state(const std::shared_ptr<torch::nn::Module>& module,
                         const std::shared_ptr<State>& state);

// The state that manages `module`, or null. A module that is itself a State is its own state. Does
// not create or change anything. Errors: RuntimeFault if the state was destroyed before the module.
[[nodiscard]] std::shared_ptr<State> module_state(const torch::nn::Module& module);

// Returns the state of the module if it is a T, else null: a replicate() state is not an
// fsdp::FsdpState.
template <typename T>
[[nodiscard]] std::shared_ptr<T> module_state_as(const torch::nn::Module& module) {
  return std::dynamic_pointer_cast<T>(module_state(module));
}

// Whether the module has a state, even one that was destroyed.
[[nodiscard]] bool has_module_state(const torch::nn::Module& module);

// Number of live modules in the mapping.
[[nodiscard]] size_t module_state_count();

// Removes every module that maps to `state`: for an API that failed half-way.
void erase_module_states(const State& state);

}  // namespace shardlens::composable
