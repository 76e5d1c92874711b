#include "core/fsdp/apply/fully_shard.h"

#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/composable/class_name.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/module_states.h"
#include "core/fsdp/apply/unit_setup.h"
#include "core/fsdp/run/root.h"
#include "core/module/activation_checkpoint.h"
#include "core/module/hook_point.h"
#include "core/module/scalar_type.h"
#include "core/module/tree_of.h"
#include "core/plan/resolve.h"

namespace shardlens::fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using module::ModulesByFqn;

// Whether fully_shard manages the unit. A replicate() unit is treated as a unit without parameters;
// if it is the root, it still gets the hooks of forward and backward.
bool is_sharded(const plan::Unit& unit) {
  return unit.api == plan::Api::kFullyShard;
}

std::vector<int64_t> whole_shape(const at::Tensor& parameter) {
  if (const FsdpState* owner = FsdpState::owner_of(parameter); owner != nullptr) {
    for (const FlatParamHandle::Slot& slot : owner->handle()->slots()) {
      if (slot.parameter.is_same(parameter)) {
        return slot.shape;
      }
    }
  }
  return parameter.sizes().vec();
}

// For each module of the tree, the innermost unit that contains it.
std::vector<UnitId> units_of_modules(const plan::ResolvedPlan& plan) {
  std::vector<UnitId> unit_of(plan.tree.modules.size(), 0);
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (const uint32_t index : plan.units[id].modules) {
      unit_of[index] = id;
    }
  }
  for (uint32_t index = 1; index < plan.tree.modules.size(); ++index) {
    if (unit_of[index] == 0) {
      unit_of[index] = unit_of[plan.tree.modules[index].parent];
    }
  }
  return unit_of;
}

// The modules of each unit. Errors: UsageError if the model does not have one of them.
std::vector<composable::Modules> modules_of_units(const plan::ResolvedPlan& plan,
                                                  const ModulesByFqn& modules) {
  std::vector<composable::Modules> of(plan.units.size());
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (const uint32_t index : plan.units[id].modules) {
      const std::string& fqn = plan.tree.modules[index].fqn;
      const auto found = modules.find(fqn);
      if (found == modules.end()) {
        throw UsageError("fully_shard: the plan has unit " +
                         (fqn.empty() ? "the root" : "'" + fqn + "'") +
                         ", but the model has no such module");
      }
      of[id].push_back(found->second);
    }
  }
  return of;
}

// Casts the module's own floating-point buffers permanently, as FSDP1 does in its first forward.
void cast_buffers(torch::nn::Module& module, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  for (auto& buffer : module.named_buffers(/*recurse=*/false)) {
    if (buffer.value().is_floating_point()) {
      buffer.value().set_data(buffer.value().to(dtype));
    }
  }
}

// Checks that the parameters of a unit that was sharded separately are still those of the tree, and
// renames them relative to the model.
void adopt(FsdpState& state,
           const plan::ResolvedPlan& plan,
           UnitId id,
           const std::vector<at::Tensor>& parameters) {
  const plan::Unit& unit = plan.units[id];
  const size_t slots = state.handle() == nullptr ? 0 : state.handle()->slots().size();
  std::vector<std::string> fqns;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    fqns.push_back(plan.tree.parameters[unit.parameters[i]].fqn);
    if (i >= slots ||
        !state.handle()->slots()[i].parameter.is_same(parameters[unit.parameters[i]])) {
      throw UsageError("fully_shard: parameter '" + fqns.back() + "' of unit '" + unit.fqn +
                       "' did not exist when the unit was sharded");
    }
    const bool requires_grad = plan.tree.parameters[unit.parameters[i]].requires_grad &&
                               parameters[unit.parameters[i]].requires_grad();
    if (state.handle()->is_frozen(i) == requires_grad) {
      throw UsageError(fmt::format(
          "fully_shard: parameter '{}' of unit '{}' was {} when the unit was sharded; freeze or "
          "unfreeze parameters before that",
          fqns.back(), unit.fqn, requires_grad ? "frozen" : "not frozen"));
    }
  }
  if (fqns.size() < slots) {
    throw UsageError("fully_shard: parameter '" + state.handle()->slots()[fqns.size()].fqn +
                     "' of unit '" + unit.fqn + "' was removed after the unit was sharded");
  }
  if (state.handle() != nullptr) {
    state.handle()->rename(unit.fqn, std::move(fqns));
  }
}

// Checks that all ranks have the same parameters. Otherwise all-gathers would return wrong values,
// or the ranks would wait for each other.
void compare_ranks(const plan::ResolvedPlan& plan, dist::World& world) {
  dist::Communicator& group = world.world();
  if (!group.checks_ranks()) {
    return;
  }
  group.agree(fmt::format("shards {} parameters in {} units", plan.tree.parameters.size(),
                          plan.units.size()));
  for (const plan::Unit& unit : plan.units) {
    for (const uint32_t index : unit.parameters) {
      const plan::Parameter& parameter = plan.tree.parameters[index];
      group.agree(fmt::format("has {}parameter '{}' [{}] in unit '{}'",
                              parameter.requires_grad ? "" : "frozen ", parameter.fqn,
                              fmt::join(parameter.shape, ", "), unit.fqn));
    }
  }
}

// The parameters and buffers of units that are not sharded yet.
std::vector<ModuleState> states_to_prepare(const plan::ResolvedPlan& plan,
                                           const ModulesByFqn& modules,
                                           const std::vector<at::Tensor>& parameters,
                                           const std::vector<std::shared_ptr<FsdpState>>& states) {
  std::vector<ModuleState> out;
  const std::vector<UnitId> unit_of = units_of_modules(plan);
  for (uint32_t index = 0; index < plan.tree.modules.size(); ++index) {
    const plan::Module& spec = plan.tree.modules[index];
    const auto found = modules.find(spec.fqn);
    if (found != modules.end() && states[unit_of[index]] == nullptr &&
        is_sharded(plan.units[unit_of[index]])) {
      for (const auto& each : found->second->named_buffers(/*recurse=*/false)) {
        out.push_back({spec.fqn + "." + each.key(), each.value(), true});
      }
    }
  }
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (size_t i = 0; i < plan.units[id].parameters.size(); ++i) {
      const uint32_t index = plan.units[id].parameters[i];
      if (states[id] == nullptr && is_sharded(plan.units[id])) {
        out.push_back({plan.tree.parameters[index].fqn, parameters[index]});
      }
    }
  }
  return out;
}

}  // namespace

const composable::Api& fully_shard_api() {
  static const composable::Api api("fully_shard");
  return api;
}

schedule::ScheduleOptions options_of(const plan::ResolvedPlan& plan, const Options& options) {
  schedule::ScheduleOptions result = schedule::schedule_options(plan);
  result.force_collectives = options.force_collectives;
  return result;
}

std::vector<schedule::UnitSpec> specs_of(const plan::ResolvedPlan& plan,
                                         const std::vector<std::shared_ptr<FsdpState>>& states) {
  std::vector<schedule::UnitSpec> specs = schedule::unit_specs(plan);
  for (UnitId id = 0; id < states.size(); ++id) {
    if (states[id]->handle() != nullptr && states[id]->handle()->storage().is_extended()) {
      specs[id].copy_in = specs[id].copy_out = true;
    }
  }
  return specs;
}

std::shared_ptr<Root> join_units(const ModulePtr& model,
                                 plan::ResolvedPlan plan,
                                 const Options& options,
                                 std::vector<std::shared_ptr<FsdpState>> states) {
  plan::require_engine_support(plan);
  states.resize(plan.units.size());
  const ModulesByFqn modules = module::modules_by_fqn(*model);
  const std::vector<composable::Modules> members = modules_of_units(plan, modules);
  const std::vector<UnitId> unit_of = units_of_modules(plan);

  // All checks for mistakes of the caller are before the first change of the model.
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (size_t i = 0; i < members[id].size() && is_sharded(plan.units[id]); ++i) {
      if (states[id] == nullptr) {
        require_shardable(members[id][i], plan.tree.modules[plan.units[id].modules[i]].fqn);
      }
    }
  }
  for (uint32_t index = 0; index < plan.tree.modules.size(); ++index) {
    const plan::Module& spec = plan.tree.modules[index];
    const auto found = modules.find(spec.fqn);
    if (found != modules.end() && states[unit_of[index]] == nullptr &&
        is_sharded(plan.units[unit_of[index]]) && composable::has_module_state(*found->second)) {
      throw UsageError("fully_shard: module " + composable::described(*found->second, spec.fqn) +
                       " is already managed; shard a model and its parts with one call, as units "
                       "of one plan");
    }
  }
  const std::vector<at::Tensor> parameters =
      module::checked_parameters(*model, plan.tree, "fully_shard", whole_shape);
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    if (states[id] != nullptr) {
      adopt(*states[id], plan, id, parameters);
    } else if (is_sharded(plan.units[id])) {
      require_parameters(plan, id, parameters, options);
    }
  }
  module::share_frozen(plan.tree, parameters);
  module::share_dtypes(plan.tree, parameters);
  const auto checkpoints = module::modules_to_checkpoint(model, plan);
  Result<schedule::Schedule> schedule =
      schedule::Schedule::make(schedule::unit_specs(plan), options_of(plan, options));
  if (!schedule.ok()) {
    throw UsageError("fully_shard: " + schedule.message());
  }

  prepare_module_states(states_to_prepare(plan, modules, parameters, states), options);
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    if (states[id] != nullptr) {
      continue;
    }
    states[id] = std::make_shared<FsdpState>();
    if (is_sharded(plan.units[id])) {
      shard_unit(states[id], plan, id, members[id], parameters, options);
    }
    if (id == 0 || is_sharded(plan.units[id])) {
      register_hooks(states[id], members[id]);
    }
  }
  std::unordered_set<const c10::TensorImpl*> ignored;
  for (const uint32_t index : plan.ignored_parameters) {
    ignored.insert(parameters[index].unsafeGetTensorImpl());
  }
  // Map every submodule to the state of the unit that it belongs to.
  for (uint32_t index = 0; index < plan.tree.modules.size(); ++index) {
    const auto found = modules.find(plan.tree.modules[index].fqn);
    if (found != modules.end() && is_sharded(plan.units[unit_of[index]]) &&
        !composable::has_module_state(*found->second) &&
        (index == 0 || !is_ignored(*found->second, ignored))) {
      composable::insert_module_state(found->second, states[unit_of[index]]);
    }
  }
  for (uint32_t index = 0; index < plan.tree.modules.size(); ++index) {
    const auto found = modules.find(plan.tree.modules[index].fqn);
    const auto& dtype = plan.units[unit_of[index]].mixed_precision.buffer_dtype;
    if (found != modules.end() && dtype.has_value()) {
      cast_buffers(*found->second, module::to_scalar_type(*dtype));
    }
  }
  mark_managed(model);
  compare_ranks(plan, *options.world);
  schedule = schedule::Schedule::make(specs_of(plan, states), options_of(plan, options));
  const auto root =
      std::make_shared<Root>(std::move(plan), options, std::move(schedule.value()), states);
  for (UnitId id = 0; id < states.size(); ++id) {
    states[id]->join(root, id);
  }
  // The root module's hooks own the Root, so that it exists as long as the model.
  module::HookPoint& point = module::hook_point(fully_shard_api(), *model, "");
  point.keep(point.register_pre_forward([root](module::TensorRefs& /*inputs*/) {}));
  for (const module::NamedModule& each : checkpoints) {
    module::checkpoint(each.module, each.fqn);
  }
  return root;
}

std::shared_ptr<ShardedModel> fully_shard(const ModulePtr& model,
                                          const plan::ResolvedPlan& plan,
                                          const Options& options) {
  SHARDLENS_CHECK(options.world != nullptr, "fully_shard needs a world");
  return join_units(model, plan, options, {});
}

std::shared_ptr<Root> join_parts(const ModulePtr& model,
                                 const plan::Plan& plan,
                                 const Options& options) {
  const Parts parts = parts_of(model, plan);
  const plan::ResolvedPlan resolved =
      plan::resolve(parts.plan, module::tree_of(*model, whole_shape), options.world->size());
  std::vector<std::shared_ptr<FsdpState>> states;
  for (const plan::Unit& unit : resolved.units) {
    const auto entry = static_cast<size_t>(unit.entry);
    states.push_back(unit.entry >= 0 && entry < parts.states.size() ? parts.states[entry]
                                                                    : nullptr);
  }
  return join_units(model, resolved, options, std::move(states));
}

std::shared_ptr<ShardedModel> fully_shard(const ModulePtr& model,
                                          const plan::Plan& plan,
                                          const Options& options) {
  SHARDLENS_CHECK(options.world != nullptr, "fully_shard needs a world");
  composable::require_once(fully_shard_api(), *model, "");
  return join_parts(model, plan, options);
}

}  // namespace shardlens::fsdp
