#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/composable/module_state.h"

namespace shardlens::composable {

// A distributed API that can be applied to modules. Its identity is the address of this object,
// which has static lifetime, as it is the function object in Python. Two objects with the same name
// are two implementations of one API: only one of them can be applied to a module.
struct Api {
  explicit Api(std::string api_name) : name(std::move(api_name)) {}
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;
  const std::string name;  // "fully_shard", "replicate", …
};

// One application of an API. Modules that are given as one list share one item.
struct RegistryItem {
  const Api* api = nullptr;
  std::weak_ptr<State> state;
};
// The APIs that were applied to one module, in order of application.
using Registry = std::vector<std::shared_ptr<const RegistryItem>>;

// Null for a module that no API was applied to. Does not create or change anything (PyTorch PR
// 113654). Ownership: a snapshot; it does not contain APIs that are applied later. Threads: any.
[[nodiscard]] std::shared_ptr<const Registry> registry(const torch::nn::Module& module);

[[nodiscard]] bool has_api(const torch::nn::Module& module, std::string_view name);

// The state that this API object stored for the module, or null. Does not create or change
// anything.
[[nodiscard]] std::shared_ptr<State> state_of(const Api& api, const torch::nn::Module& module);

// Throws UsageError if an API manages the module. Modules with hooks call it from clone(): a copy
// would share hooks and storage with the original but would not be managed by the API.
void refuse_copy(const torch::nn::Module& module);

// Throws UsageError if fully_shard manages the module. Modules with hooks call it from save(): the
// file would contain only one rank's slices.
void refuse_slices(const torch::nn::Module& module);
// The same for a module of which `parameter` is sharded.
[[noreturn]] void refuse_slices(const torch::nn::Module& module, const std::string& parameter);

// Only apply() (core/composable/contract.h) calls these.
namespace detail {
void add_to_registry(const std::shared_ptr<torch::nn::Module>& module,
                     const std::shared_ptr<const RegistryItem>& item);
void remove_from_registry(const std::shared_ptr<torch::nn::Module>& module,
                          const std::shared_ptr<const RegistryItem>& item);
}  // namespace detail

}  // namespace shardlens::composable
