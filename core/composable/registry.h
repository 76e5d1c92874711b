#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/composable/module_state.h"

namespace shardlens::composable {

// The distributed APIs that were applied to a module, in order of application.
struct RegistryItem {
  std::string api;  // "fully_shard", "replicate", …
  std::weak_ptr<State>
      state;  // owned by whoever applied the API, usually through the module's hooks
};
using Registry = std::vector<RegistryItem>;

// Null for a module that no API touched. Never creates or changes anything (PyTorch PR 113654).
// Ownership: valid until the module dies or another API is applied to it.
[[nodiscard]] const Registry* registry(const torch::nn::Module& module);
[[nodiscard]] bool has_api(const torch::nn::Module& module, std::string_view api);

// Adds an entry. Errors: UsageError naming API and module (`fqn`) if it has been applied to this
// module before.
void add_to_registry(const std::shared_ptr<torch::nn::Module>& module,
                     std::string_view api,
                     const std::shared_ptr<State>& state,
                     std::string_view fqn);

}  // namespace shardlens::composable
