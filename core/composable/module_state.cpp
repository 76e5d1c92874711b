#include "core/composable/module_state.h"

#include <mutex>
#include <unordered_map>

#include <torch/nn/module.h>

#include "core/base/error.h"

namespace shardlens::composable {
namespace {

struct Entry {
  std::weak_ptr<torch::nn::Module>
      module;  // tells a live module from a new one at the same address
  std::weak_ptr<State> state;
};

struct Mapping {
  std::mutex mutex;
  std::unordered_map<const torch::nn::Module*, Entry> entries;
};

Mapping& mapping() {
  static Mapping instance;
  return instance;
}

}  // namespace

void insert_module_state(const std::shared_ptr<torch::nn::Module>& module,
                         const std::shared_ptr<State>& state) {
  Mapping& map = mapping();
  const std::lock_guard lock(map.mutex);
  std::erase_if(map.entries, [](const auto& item) { return item.second.module.expired(); });
  if (map.entries.contains(module.get())) {
    throw UsageError("a module of type " + module->name() +
                     " is managed already: each module has one state");
  }
  map.entries[module.get()] = {module, state};
}

std::shared_ptr<State> module_state(const torch::nn::Module& module) {
  Mapping& map = mapping();
  const std::lock_guard lock(map.mutex);
  const auto found = map.entries.find(&module);
  if (found == map.entries.end() || found->second.module.expired()) {
    return nullptr;
  }
  std::shared_ptr<State> state = found->second.state.lock();
  if (state == nullptr) {
    throw RuntimeFault("the state of a module of type " + module.name() +
                       " has been destroyed already");
  }
  return state;
}

}  // namespace shardlens::composable
