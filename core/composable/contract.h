#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/composable/registry.h"

namespace shardlens::composable {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

// The modules of the list without a parent in the list, in order.
[[nodiscard]] Modules root_modules(const Modules& modules);

// What an API does to the modules it is given. May replace parameters' values and add hooks; may
// not change a name. Returns the modules that stand in for the given ones, or none: they stay
// themselves.
using Body = std::function<Modules(const Modules& modules)>;

// Applies an API to modules by the contract that lets APIs compose:
//   1. Of a list only the root modules are touched; all share `state` and one registry item.
//   2. An API is applied to a module once, by identity and by name.
//   3. State and registry are in place before `body` runs.
//   4. Afterwards there are as many root modules as before, and the FQNs of their parameters,
//      buffers and modules are the same in the same order.
// On an exception, from `body` or a check, registry and module states are as before the call
// (PyTorch leaves them behind); what `body` did to the modules is its own to undo.
//
// Ownership  modules with hooks own `state` from then on; of others the caller keeps it. A state is
//            of one application alone.
// Threads    different modules may be given to APIs on different threads.
// Errors     UsageError naming API, module (`fqn`) and both differences of the first category that
//            fails.
// Source     torch/distributed/_composable/contract.py, torch 2.11.
Modules apply(const Api& api,
              const Modules& modules,
              const std::shared_ptr<State>& state,
              const Body& body,
              const std::string& fqn = "");

// Refuses a module that the API, or another one of its name, was applied to: for APIs that look at
// all modules before they change the first. Errors: UsageError naming both.
void require_once(const Api& api, const torch::nn::Module& module, const std::string& fqn);

// Refuses containers that have no forward, on which hooks would never fire.
// Errors: UsageError with the container's FQN and class.
void require_forward(const Api& api, const torch::nn::Module& module, const std::string& fqn);

}  // namespace shardlens::composable
