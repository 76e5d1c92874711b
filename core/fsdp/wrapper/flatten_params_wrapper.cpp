#include "core/fsdp/wrapper/flatten_params_wrapper.h"

#include <unordered_set>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include "core/base/error.h"

namespace shardlens::fsdp {
namespace {

using Parameters = torch::OrderedDict<std::string, at::Tensor>;

// Gives access to a module's parameters: torch::nn::Module has no function that unregisters one.
struct Registered : torch::nn::Module {
  static Parameters& parameters_of(torch::nn::Module& module) {
    return module.*(&Registered::parameters_);
  }
};

}  // namespace

FlattenedModule::FlattenedModule(std::shared_ptr<torch::nn::Module> module,
                                 const std::vector<at::Tensor>& params)
    : wrapped_(std::move(module)) {
  register_module(kModule, wrapped_);
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const at::Tensor& parameter : params) {
    wanted.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<FlatParamHandle::Slot> slots;
  std::unordered_set<const c10::TensorImpl*> found;
  std::unordered_set<const torch::nn::Module*> visited;
  for (const auto& each : wrapped_->named_modules()) {
    Owner owner{each.value(), Registered::parameters_of(*each.value()), Parameters()};
    const std::string prefix = each.key().empty() ? "" : each.key() + ".";
    for (const auto& own : owner.all) {
      const c10::TensorImpl* const impl = own.value().unsafeGetTensorImpl();
      if (!own.value().defined() || !wanted.contains(impl)) {
        owner.kept.insert(own.key(), own.value());
      } else if (found.insert(impl).second) {
        slots.push_back({prefix + own.key(), own.value(), own.value().sizes().vec()});
      } else {
        shared_names_.push_back(prefix + own.key());
      }
    }
    if (owner.kept.size() < owner.all.size() && visited.insert(owner.module.get()).second) {
      owners_.push_back(std::move(owner));
    }
  }
  if (found.size() < wanted.size()) {
    throw UsageError(fmt::format(
        "FlattenParamsWrapper: {} of {} tensors to flatten are not parameters of the module or its "
        "submodules",
        wanted.size() - found.size(), wanted.size()));
  }
  if (slots.empty()) {
    return;
  }
  std::vector<std::vector<int64_t>> shapes;
  for (const FlatParamHandle::Slot& slot : slots) {
    shapes.push_back(slot.shape);
  }
  const at::ScalarType dtype = slots.front().parameter.scalar_type();
  // No gaps between parameters, so the dtype of the alignment has no effect.
  const plan::ShardLayout layout(plan::Layout::kFlat, shapes, 1, DType::kF32,
                                 /*alignment_bytes=*/1);
  handle_ = std::make_unique<FlatParamHandle>("", std::move(slots), layout, 0, dtype, dtype);
  handle_->let_gradients_through();
  flatten();
}

FlatParamHandle& FlattenedModule::handle() const {
  if (handle_ == nullptr) {
    throw UsageError(
        "Accessing the handle of a FlattenParamsWrapper that does not manage any parameters; check "
        "has_params() first");
  }
  return *handle_;
}

at::Tensor FlattenedModule::flat_param() const {
  const at::Tensor* flat = parameters_.find(kFlatParam);
  return flat == nullptr ? at::Tensor() : *flat;
}

FlattenedModule::Unflattened FlattenedModule::unflatten_as_params() {
  if (!flat_param().defined()) {
    return Unflattened(nullptr);
  }
  handle_->follow();
  handle_->use_leaves();
  parameters_.erase(kFlatParam);
  for (const Owner& owner : owners_) {
    Registered::parameters_of(*owner.module) = owner.all;
  }
  return Unflattened(this);
}

void FlattenedModule::flatten() {
  handle_->write_back_leaves();
  for (const Owner& owner : owners_) {
    Registered::parameters_of(*owner.module) = owner.kept;
  }
  for (const FlatParamHandle::Slot& slot : handle_->slots()) {
    slot.parameter.mutable_grad() = at::Tensor();  // the parameter is no longer a leaf
  }
  const at::Tensor& flat = handle_->unsharded();
  register_parameter(kFlatParam, flat, flat.requires_grad());
  make_views();
}

void FlattenedModule::make_views() {
  if (flat_param().defined()) {
    handle_->follow();
    const bool edges = at::GradMode::is_enabled() && handle_->unsharded().requires_grad();
    if (edges) {
      handle_->make_views({});
    }
    handle_->use_full(edges);
  }
}

void FlattenedModule::save(torch::serialize::OutputArchive& archive) const {
  if (const at::Tensor flat = flat_param(); flat.defined()) {
    archive.write(kFlatParam, flat);
  }
  wrapped_->save(archive);
}

void FlattenedModule::load(torch::serialize::InputArchive& archive) {
  if (at::Tensor flat = flat_param(); flat.defined()) {
    archive.read(kFlatParam, flat);
  }
  wrapped_->load(archive);
  make_views();
}

}  // namespace shardlens::fsdp
