#include "core/composable/registry.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/composable/class_name.h"
#include "core/composable/module_map.h"

namespace shardlens::composable {
namespace {

// Registries are never changed in place, so snapshots that callers hold stay valid and constant.
ModuleMap<std::shared_ptr<const Registry>>& table() {
  // Never destroyed, here and in the other tables: models in static variables use them at exit.
  static auto& instance = *new ModuleMap<std::shared_ptr<const Registry>>;
  return instance;
}

}  // namespace

std::shared_ptr<const Registry> registry(const torch::nn::Module& module) {
  return table().find(module).value_or(nullptr);
}

bool has_api(const torch::nn::Module& module, std::string_view name) {
  const auto items = registry(module);
  return items != nullptr && std::any_of(items->begin(), items->end(),
                                         [&](const auto& item) { return item->api->name == name; });
}

std::shared_ptr<State> state_of(const Api& api, const torch::nn::Module& module) {
  if (const auto items = registry(module)) {
    for (const auto& item : *items) {
      if (item->api == &api) {
        return item->state.lock();
      }
    }
  }
  return nullptr;
}

void refuse_copy(const torch::nn::Module& module) {
  const auto items = registry(module);
  if (items == nullptr && !has_module_state(module)) {
    return;
  }
  throw UsageError((items == nullptr ? "a managed module" : items->front()->api->name) +
                   " does not support copying: the " + class_name(module) +
                   " is managed by it; build a new module and load the state dict");
}

void refuse_slices(const torch::nn::Module& module) {
  if (has_api(module, "fully_shard")) {
    refuse_slices(module, "");
  }
}

void refuse_slices(const torch::nn::Module& module, const std::string& parameter) {
  throw UsageError(
      "fully_shard: " + (parameter.empty() ? "the " : "parameter '" + parameter + "' of a ") +
      class_name(module) +
      " is sharded, so a file saved from it would contain only this rank's slices; "
      "save the tensors of full_parameter(), which all ranks call, or a copy of the "
      "model with these values");
}

namespace detail {

void add_to_registry(const std::shared_ptr<torch::nn::Module>& module,
                     const std::shared_ptr<const RegistryItem>& item) {
  const auto before = registry(*module);
  auto after =
      before == nullptr ? std::make_shared<Registry>() : std::make_shared<Registry>(*before);
  after->push_back(item);
  table().set(module, std::move(after));
}

void remove_from_registry(const std::shared_ptr<torch::nn::Module>& module,
                          const std::shared_ptr<const RegistryItem>& item) {
  const auto before = registry(*module);
  if (before == nullptr) {
    return;
  }
  auto after = std::make_shared<Registry>(*before);
  std::erase(*after, item);
  if (after->empty()) {
    table().erase(*module);
  } else {
    table().set(module, std::move(after));
  }
}

}  // namespace detail
}  // namespace shardlens::composable
