#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/composable/module_state.h"

namespace shardlens::composable {

// A distributed API that modules can be given to: one object with static lifetime, which is its
// identity as the function object is in Python. Two objects of one name are two implementations of
// one API: a module takes one of them.
struct Api {
  explicit Api(std::string api_name) : name(std::move(api_name)) {}
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;
  const std::string name;  // "fully_shard", "replicate", …
};

// One application of an API; modules given to it as a list share one item.
struct RegistryItem {
  const Api* api = nullptr;
  std::weak_ptr<State> state;
};
// The APIs that were applied to one module, in order of application.
using Registry = std::vector<std::shared_ptr<const RegistryItem>>;

// Null for a module that no API touched. Never creates or changes anything (PyTorch PR 113654).
// Ownership: a snapshot; APIs applied later do not show in it. Threads: any.
[[nodiscard]] std::shared_ptr<const Registry> registry(const torch::nn::Module& module);

[[nodiscard]] bool has_api(const torch::nn::Module& module, std::string_view name);

// The state that this very API object left on the module, or null. As pure as registry().
[[nodiscard]] std::shared_ptr<State> state_of(const Api& api, const torch::nn::Module& module);

// Throws UsageError if an API manages the module. Modules with hooks call it from clone(): a copy
// would share hooks and storage with the original without being known to its API.
void refuse_copy(const torch::nn::Module& module);

// Entries are written by apply() (core/composable/contract.h) alone.
namespace detail {
void add_to_registry(const std::shared_ptr<torch::nn::Module>& module,
                     const std::shared_ptr<const RegistryItem>& item);
void remove_from_registry(const std::shared_ptr<torch::nn::Module>& module,
                          const std::shared_ptr<const RegistryItem>& item);
}  // namespace detail

}  // namespace shardlens::composable
