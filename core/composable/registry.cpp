#include "core/composable/registry.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <torch/nn/module.h>

#include "core/base/error.h"

namespace shardlens::composable {
namespace {

struct Entry {
  std::weak_ptr<torch::nn::Module> module;
  Registry items;
};

struct Table {
  std::mutex mutex;
  std::unordered_map<const torch::nn::Module*, Entry> entries;
};

Table& table() {
  static Table instance;
  return instance;
}

}  // namespace

const Registry* registry(const torch::nn::Module& module) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.entries.find(&module);
  return found == all.entries.end() || found->second.module.expired() ? nullptr
                                                                      : &found->second.items;
}

bool has_api(const torch::nn::Module& module, std::string_view api) {
  const Registry* items = registry(module);
  return items != nullptr && std::any_of(items->begin(), items->end(),
                                         [&](const RegistryItem& item) { return item.api == api; });
}

void add_to_registry(const std::shared_ptr<torch::nn::Module>& module,
                     std::string_view api,
                     const std::shared_ptr<State>& state,
                     std::string_view fqn) {
  if (has_api(*module, api)) {
    throw UsageError(std::string(api) + " has already been applied to module '" + std::string(fqn) +
                     "' (" + module->name() + "); each API can be applied to a module once");
  }
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.entries, [](const auto& item) { return item.second.module.expired(); });
  Entry& entry = all.entries[module.get()];
  entry.module = module;
  entry.items.push_back({std::string(api), state});
}

}  // namespace shardlens::composable
