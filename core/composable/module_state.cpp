#include "core/composable/module_state.h"

#include "core/base/error.h"
#include "core/composable/class_name.h"
#include "core/composable/module_map.h"

namespace shardlens::composable {
namespace {

struct Mapped {
  std::weak_ptr<State> state;
  const State* identity = nullptr;  // never dereferenced: identifies a state that was destroyed
};

ModuleMap<Mapped>& mapping() {
  static auto& instance = *new ModuleMap<Mapped>;
  return instance;
}

}  // namespace

void insert_module_state(const std::shared_ptr<torch::nn::Module>& module,
                         const std::shared_ptr<State>& state) {
  SHARDLENS_CHECK(module != nullptr && state != nullptr, "a module state needs module and state");
  if (!mapping().insert(module, {state, state.get()})) {
    throw UsageError("Inserting the state of a " + class_name(*module) +
                     " more than once: the module is managed already, and each module has only "
                     "one state");
  }
}

std::shared_ptr<State> module_state(const torch::nn::Module& module) {
  if (const auto* self = dynamic_cast<const State*>(&module)) {
    const auto owner = std::const_pointer_cast<torch::nn::Module>(module.shared_from_this());
    return {owner, const_cast<State*>(self)};  // the module's own pointer was not const
  }
  const std::optional<Mapped> found = mapping().find(module);
  if (!found.has_value()) {
    return nullptr;
  }
  std::shared_ptr<State> state = found->state.lock();
  if (state == nullptr) {
    throw RuntimeFault("State has already been garbage collected: the owner of the state of a " +
                       class_name(module) + " has been destroyed before the module");
  }
  return state;
}

bool has_module_state(const torch::nn::Module& module) {
  return dynamic_cast<const State*>(&module) != nullptr || mapping().find(module).has_value();
}

size_t module_state_count() {
  return mapping().size();
}

void erase_module_states(const State& state) {
  mapping().erase_if([&](const Mapped& mapped) { return mapped.identity == &state; });
}

}  // namespace shardlens::composable
