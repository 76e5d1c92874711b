#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/composable/registry.h"

namespace shardlens::composable {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

// The modules of the list that are not descendants of another module of the list, in order.
[[nodiscard]] Modules root_modules(const Modules& modules);

// An API's contract about the modules it is applied to. It may replace parameters' values and add
// hooks; it may not change a name. Returns the modules that replace the given ones, or an empty
// list to keep them.
using Body = std::function<Modules(const Modules& modules)>;

// Applies an API to modules under the contract that lets APIs be combined:
//   1. Only the root modules of a list get registry entries; all share `state` and one registry
//      item.
//   2. An API, identified by its name, is applied to a module at most once.
//   3. The registry is updated before `body` runs.
//   4. Afterwards there are as many root modules as before, and the FQNs of their parameters,
//      buffers and modules are the same in the same order.
// After an exception from `body` or a check, registry and module states are as before the call
// (PyTorch does not restore them); `body` must undo its own changes to the modules.
//
// Ownership  modules with hooks own `state` afterwards; for other modules the caller must keep it.
//            A state belongs to one application only.
// Threads    APIs may be applied to different modules on different threads.
// Errors     UsageError naming the API and the module (`fqn`), or the API and both differences of
//            the first category that fails.
// Source     torch/distributed/_composable/contract.py, torch 2.11.
Modules apply(const Api& api,
              const Modules& modules,
              const std::shared_ptr<State>& state,
              const Body& body,
              const std::string& fqn = "");

// Checks that neither this API nor another of the same name was applied to the module: for APIs
// that check all modules before they change the first. Errors: UsageError naming API and module.
void require_once(const Api& api, const torch::nn::Module& module, const std::string& fqn);

// Checks that the module is not a container without forward, whose hooks would never run.
// Errors: UsageError with the container's FQN and class.
void require_forward(const Api& api, const torch::nn::Module& module, const std::string& fqn);

}  // namespace shardlens::composable
