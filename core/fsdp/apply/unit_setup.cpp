#include "core/fsdp/apply/unit_setup.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/nn/module.h>

#include "core/base/error.h"
#include "core/composable/managed.h"
#include "core/dist/same_device.h"
#include "core/dist/world.h"
#include "core/fsdp/run/root.h"
#include "core/module/hook_point.h"
#include "core/module/scalar_type.h"

namespace shardlens::fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

std::string shown(const std::string& fqn) {
  return fqn.empty() ? "the root" : "'" + fqn + "'";
}

// Null for a unit that owns no parameters.
std::shared_ptr<FlatParamHandle> make_handle(const plan::ResolvedPlan& plan,
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
    slots.push_back({parameter.fqn, parameters[index], parameter.shape});
  }
  const int64_t rank = plan.groups[unit.gather].position(options.world->rank());
  std::optional<at::ScalarType> param_dtype;
  if (const std::optional<DType>& dtype = unit.mixed_precision.param_dtype; dtype.has_value()) {
    param_dtype = module::to_scalar_type(*dtype);
  }
  const bool flat_of_fsdp1 =
      plan.plan.dialect == plan::Dialect::kFsdp1 && plan.plan.layout == plan::Layout::kFlat;
  FlatParamChoices choices{true, flat_of_fsdp1, options.deferred, std::nullopt, unit.cpu_offload};
  if (unit.cpu_offload || options.device_id) {
    choices.device = options.world->world().device();
  }
  auto handle = std::make_shared<FlatParamHandle>(
      unit.fqn, std::move(slots), plan.layout(id), rank, param_dtype,
      module::to_scalar_type(plan.reduce_dtype(id)), choices);
  handle->set_reduction(reduction_of(plan, id));
  if (plan.plan.reduce_scatter_unused_params) {
    handle->reduce_unused();
  }
  if (unit.reshard_after_forward.kind == plan::Reshard::Kind::kSubMesh) {
    handle->storage().set_sub_mesh(unit.reshard_after_forward.ranks);
  }
  if (unit.keep_unsharded_storage) {
    handle->storage().keep();
  }
  handle->storage().extend(options.all_gather_extension);
  return handle;
}

}  // namespace

void require_shardable(const ModulePtr& module, const std::string& fqn) {
  static_cast<void>(module::hook_point(fully_shard_api(), *module, fqn));
  composable::require_once(fully_shard_api(), *module, fqn);
  if (composable::has_api(*module, "replicate")) {
    throw UsageError("fully_shard: module " + shown(fqn) +
                     " already has 'replicate' applied; apply one API per module");
  }
}

void require_parameters(const plan::ResolvedPlan& plan,
                        UnitId id,
                        const std::vector<at::Tensor>& parameters,
                        const Options& options) {
  const plan::Unit& unit = plan.units[id];
  const c10::Device device = options.world->world().device();
  const bool flat = plan.plan.layout == plan::Layout::kFlat;
  std::optional<uint32_t> first;  // whose dtype the others must have
  for (const uint32_t index : unit.parameters) {
    const std::string& fqn = plan.tree.parameters[index].fqn;
    const at::Tensor& tensor = parameters[index];
    if (const FsdpState* owner = FsdpState::owner_of(tensor); owner != nullptr) {
      throw UsageError(fmt::format(
          "fully_shard: parameter '{}' of unit {} is managed by unit {} already; give tied "
          "parameters to one unit",
          fqn, shown(unit.fqn), shown(owner->handle()->unit())));
    }
    if (flat || (plan.tree.parameters[index].requires_grad && tensor.requires_grad())) {
      first = first.value_or(index);
      if (tensor.scalar_type() != parameters[*first].scalar_type()) {
        throw UsageError(fmt::format(
            "fully_shard: unit {} mixes dtypes: '{}' is {}, '{}' is {}; expected one dtype for {}; "
            "give the modules of the other dtype a unit of their own{}",
            shown(unit.fqn), plan.tree.parameters[*first].fqn,
            toString(parameters[*first].scalar_type()), fqn, toString(tensor.scalar_type()),
            flat ? "all parameters of a flat parameter" : "all that are not frozen",
            flat ? ", or freeze them and use the layout per_parameter" : ""));
      }
    }
    if (!module::trainable_dtype(tensor.scalar_type())) {
      throw UsageError(fmt::format(
          "fully_shard: parameter '{}' of unit {} is {}; expected Float, Double, BFloat16 or Half",
          fqn, shown(unit.fqn), toString(tensor.scalar_type())));
    }
    const bool on_host = (unit.cpu_offload || options.device_id) && tensor.is_cpu();
    if (!on_host && !dist::same_device(tensor.device(), device)) {
      throw UsageError(fmt::format(
          "fully_shard: parameter '{}' of unit {} is on {}, and the ranks communicate on {}; move "
          "the model there before sharding it",
          fqn, shown(unit.fqn), tensor.device().str(), device.str()));
    }
  }
}

void shard_unit(const std::shared_ptr<FsdpState>& state,
                const plan::ResolvedPlan& plan,
                UnitId id,
                const composable::Modules& modules,
                const std::vector<at::Tensor>& parameters,
                const Options& options) {
  composable::apply(
      fully_shard_api(), modules, state,
      [&](const composable::Modules& given) {
        state->set_handle(make_handle(plan, id, parameters, options));
        return given;
      },
      plan.units[id].fqn);
}

void register_hooks(const std::shared_ptr<FsdpState>& state, const composable::Modules& modules) {
  const std::weak_ptr<FsdpState> weak = state;
  for (size_t slot = 0; slot < modules.size(); ++slot) {
    module::HookPoint& point = module::hook_point(fully_shard_api(), *modules[slot], "");
    point.keep(point.register_pre_forward([weak, slot](module::TensorRefs& inputs) {
      const auto alive = weak.lock();
      if (alive == nullptr) {
        return;
      }
      if (alive->application() != nullptr) {
        init_root(*alive);
      }
      if (const auto root = alive->root()) {
        root->pre_forward(alive->unit(), slot, inputs);
      }
    }));
    point.keep(point.register_post_forward([weak, slot](module::TensorRefs& outputs) {
      const auto alive = weak.lock();
      if (const auto root = alive == nullptr ? nullptr : alive->root()) {
        root->post_forward(alive->unit(), slot, outputs);
      }
    }));
    point.keep(point.register_forward_failed([weak, slot] {
      const auto alive = weak.lock();
      if (const auto root = alive == nullptr ? nullptr : alive->root()) {
        root->forward_failed(alive->unit(), slot);
      }
    }));
  }
  if (FlatParamHandle* handle = state->handle(); handle != nullptr && handle->requires_grad()) {
    handle->grad_accumulator()->add_post_hook(
        std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [weak](const torch::autograd::variable_list& outputs,
                   const torch::autograd::variable_list& /*inputs*/) {
              const auto alive = weak.lock();
              if (const auto root = alive == nullptr ? nullptr : alive->root()) {
                root->accumulated(alive->unit());
              }
              return outputs;
            }));
  }
}

bool is_ignored(const torch::nn::Module& module,
                const std::unordered_set<const c10::TensorImpl*>& ignored) {
  if (ignored.empty() || !module.buffers().empty()) {
    return false;
  }
  const std::vector<at::Tensor> parameters = module.parameters();
  return std::all_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
    return ignored.contains(parameter.unsafeGetTensorImpl());
  });
}

void mark_managed(const ModulePtr& module) {
  std::unordered_set<const torch::nn::Module*> others;
  for (const auto& each : module->modules()) {
    if (module_fsdp_state(*each) == nullptr) {
      others.insert(each.get());
    }
  }
  composable::annotate_managed_modules(module, others, /*use_orig_params=*/true);
}

}  // namespace shardlens::fsdp
