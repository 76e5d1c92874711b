#include "core/fsdp/fully_shard.h"

#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/composable/class_name.h"
#include "core/composable/contract.h"
#include "core/composable/managed.h"
#include "core/dist/world.h"
#include "core/fsdp/state.h"
#include "core/module/scalar_type.h"
#include "core/module/tree_of.h"

namespace shardlens::fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using ModulesByFqn = std::unordered_map<std::string, ModulePtr>;

std::string shown(const std::string& fqn) {
  return fqn.empty() ? "the root" : "'" + fqn + "'";
}

ModulesByFqn modules_by_fqn(const ModulePtr& model) {
  ModulesByFqn modules;
  for (const auto& each : model->named_modules()) {
    modules[each.key()] = each.value();
  }
  return modules;
}

module::HookPoint& hook_point(const ModulePtr& module, const std::string& fqn) {
  auto* point = dynamic_cast<module::HookPoint*>(module.get());
  if (point == nullptr) {
    throw UsageError("fully_shard: module " + shown(fqn) + " (" + module->name() +
                     ") cannot be a unit: it has no hooks; declare it with SHARDLENS_MODULE "
                     "instead of TORCH_MODULE");
  }
  return *point;
}

// A unit that replicate() has is, here, one that owns nothing; as the root it still drives forward
// and backward.
bool is_sharded(const plan::Unit& unit) {
  return unit.api == plan::Api::kFullyShard;
}

// Null for a unit that owns no parameters.
std::unique_ptr<FlatParamHandle> make_handle(const plan::ResolvedPlan& plan,
                                             UnitId id,
                                             const std::vector<at::Tensor>& parameters,
                                             const Options& options) {
  const plan::Unit& unit = plan.units[id];
  if (unit.parameters.empty()) {
    return nullptr;
  }
  std::vector<FlatParamHandle::Slot> slots;
  for (const uint32_t index : unit.parameters) {
    const plan::Parameter& parameter = plan.tree.parameters[index];
    const at::Tensor& tensor = parameters[index];
    if (!tensor.requires_grad()) {
      throw UsageError("fully_shard: parameter '" + parameter.fqn +
                       "' is frozen: not supported by the engine yet");
    }
    if (tensor.scalar_type() != parameters[unit.parameters.front()].scalar_type()) {
      throw UsageError(fmt::format(
          "fully_shard: unit {} mixes dtypes: '{}' is {}, '{}' is {}; expected one dtype",
          shown(unit.fqn), plan.tree.parameters[unit.parameters.front()].fqn,
          toString(parameters[unit.parameters.front()].scalar_type()), parameter.fqn,
          toString(tensor.scalar_type())));
    }
    slots.push_back({parameter.fqn, tensor, parameter.shape});
  }
  const int64_t rank = plan.shard == 1 ? 0 : options.world->shard().rank();
  return std::make_unique<FlatParamHandle>(unit.fqn, std::move(slots), plan.layout(id), rank,
                                           module::to_scalar_type(plan.param_dtype(id)),
                                           module::to_scalar_type(plan.reduce_dtype(id)));
}

// The root module's hooks own the Root, so that it lives as long as the model; all others look it
// up.
void register_hooks(const std::shared_ptr<Root>& root, const ModulesByFqn& modules) {
  const plan::ResolvedPlan& plan = root->plan();
  const std::weak_ptr<Root> weak = root;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    if (id != 0 && !is_sharded(plan.units[id])) {
      continue;
    }
    for (size_t slot = 0; slot < plan.units[id].modules.size(); ++slot) {
      const std::string& fqn = plan.tree.modules[plan.units[id].modules[slot]].fqn;
      module::HookPoint& point = hook_point(modules.at(fqn), fqn);
      const std::shared_ptr<Root> owner = id == 0 ? root : nullptr;
      point.keep(point.register_pre_forward([weak, owner, id, slot](module::TensorRefs& inputs) {
        if (const auto alive = weak.lock()) {
          alive->pre_forward(id, slot, inputs);
        }
      }));
      point.keep(point.register_post_forward([weak, id, slot](module::TensorRefs& outputs) {
        if (const auto alive = weak.lock()) {
          alive->post_forward(id, slot, outputs);
        }
      }));
      point.keep(point.register_forward_failed([weak, id, slot] {
        if (const auto alive = weak.lock()) {
          alive->forward_failed(id, slot);
        }
      }));
    }
    if (FlatParamHandle* handle = root->states()[id]->handle(); handle != nullptr) {
      handle->grad_accumulator()->add_post_hook(
          std::make_unique<torch::autograd::utils::LambdaPostHook>(
              [weak, id](const torch::autograd::variable_list& outputs,
                         const torch::autograd::variable_list& /*inputs*/) {
                if (const auto alive = weak.lock()) {
                  alive->grads_ready(id);
                }
                return outputs;
              }));
    }
  }
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

std::shared_ptr<ShardedModel> fully_shard(const ModulePtr& model,
                                          const plan::ResolvedPlan& plan,
                                          const Options& options) {
  SHARDLENS_CHECK(options.world != nullptr, "fully_shard needs a world");
  plan::require_engine_support(plan);
  const ModulesByFqn modules = modules_by_fqn(model);
  const std::vector<at::Tensor> parameters =
      module::checked_parameters(*model, plan.tree, "fully_shard");

  // Everything that can fail by the caller's mistake comes before the first change of the model.
  for (const plan::Unit& unit : plan.units) {
    for (const uint32_t index : unit.modules) {
      const std::string& fqn = plan.tree.modules[index].fqn;
      const auto found = modules.find(fqn);
      if (found == modules.end()) {
        throw UsageError("fully_shard: the plan has unit " + shown(fqn) +
                         ", which the model has not");
      }
      if (!is_sharded(unit)) {
        continue;
      }
      composable::require_forward(fully_shard_api(), *found->second, fqn);
      static_cast<void>(hook_point(found->second, fqn));
      composable::require_once(fully_shard_api(), *found->second, fqn);
      if (composable::has_api(*found->second, "replicate")) {
        throw UsageError("fully_shard: module " + shown(fqn) +
                         " already has 'replicate' applied; apply one API per module");
      }
    }
  }
  for (const plan::Module& spec : plan.tree.modules) {
    const auto found = modules.find(spec.fqn);
    if (found != modules.end() && composable::has_module_state(*found->second)) {
      throw UsageError("fully_shard: module " + composable::described(*found->second, spec.fqn) +
                       " is managed already; give a model and its parts to one call, as units of "
                       "one plan");
    }
  }
  Result<schedule::Schedule> schedule =
      schedule::Schedule::make(schedule::unit_specs(plan), options_of(plan, options));
  if (!schedule.ok()) {
    throw UsageError("fully_shard: " + schedule.message());
  }

  std::vector<std::shared_ptr<FsdpState>> states;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    states.push_back(std::make_shared<FsdpState>(id));
    composable::Modules members;
    for (const uint32_t index : plan.units[id].modules) {
      members.push_back(modules.at(plan.tree.modules[index].fqn));
    }
    if (!is_sharded(plan.units[id])) {
      continue;
    }
    composable::apply(
        fully_shard_api(), members, states.back(),
        [&](const composable::Modules& given) {
          states.back()->set_handle(make_handle(plan, id, parameters, options));
          return given;
        },
        plan.units[id].fqn);
  }
  // Every submodule maps to the state of the unit that it belongs to: its nearest enclosing one.
  std::vector<UnitId> unit_of(plan.tree.modules.size(), 0);
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    for (const uint32_t index : plan.units[id].modules) {
      unit_of[index] = id;
    }
  }
  std::unordered_set<const torch::nn::Module*> mapped;
  for (uint32_t index = 0; index < plan.tree.modules.size(); ++index) {
    const plan::Module& spec = plan.tree.modules[index];
    if (index != 0 && unit_of[index] == 0) {
      unit_of[index] = unit_of[spec.parent];
    }
    const auto found = modules.find(spec.fqn);
    if (found != modules.end() && is_sharded(plan.units[unit_of[index]]) &&
        mapped.insert(found->second.get()).second) {
      composable::insert_module_state(found->second, states[unit_of[index]]);
    }
  }
  std::unordered_set<const torch::nn::Module*> others;
  for (const auto& module : model->modules()) {
    if (module_fsdp_state(*module) == nullptr) {
      others.insert(module.get());
    }
  }
  // Parameters stay registered under their own names (use_orig_params).
  composable::annotate_managed_modules(model, others, /*use_orig_params=*/true);
  auto root = std::make_shared<Root>(plan, options, std::move(schedule.value()), std::move(states));
  register_hooks(root, modules);
  return root;
}

std::shared_ptr<ShardedModel> fully_shard(const ModulePtr& model,
                                          const plan::Plan& plan,
                                          const Options& options) {
  SHARDLENS_CHECK(options.world != nullptr, "fully_shard needs a world");
  return fully_shard(model, plan::resolve(plan, module::tree_of(*model), options.world->size()),
                     options);
}

}  // namespace shardlens::fsdp
