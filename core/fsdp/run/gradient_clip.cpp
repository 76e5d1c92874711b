#include "core/fsdp/run/gradient_clip.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/run/grad_norm.h"

namespace shardlens::fsdp {
namespace {

std::vector<at::Tensor> gradients_of_parameters(const RootUnits& units) {
  std::vector<at::Tensor> grads;
  for (const auto& [unit, handle] : units.with_parameters()) {
    for (const FlatParamHandle::Slot& slot : handle.slots()) {
      const at::Tensor& grad = slot.parameter.mutable_grad();
      if (grad.defined()) {
        grads.push_back(grad);
      }
    }
  }
  return grads;
}

// FSDP1 sums the parts of a rank before the all-reduce. FSDP2, whose norms are DTensors,
// all-reduces one part per parameter, but only one value for the maximum norm.
std::vector<double> norm_parts(const RootUnits& units,
                               const std::vector<at::Tensor>& grads,
                               double norm_type) {
  if (units.plan().plan.layout == plan::Layout::kFlat || std::isinf(norm_type)) {
    return {norm_part(grads, norm_type)};
  }
  std::vector<double> parts;
  for (const at::Tensor& grad : gradients_of_parameters(units)) {
    parts.push_back(norm_part({&grad, 1}, norm_type));
  }
  return parts;
}

}  // namespace

// Written by the thread that steps, read by the one that trains after backward has waited for it.
struct GradientClip::SteppedNorm {
  std::optional<double> type;
  double part = 0;                // CPU
  std::vector<at::Tensor> parts;  // device
};

GradientClip::GradientClip(RootUnits& units) : units_(units) {
  if (units_.plan().steps_in_backward()) {
    stepped_ = std::make_shared<SteppedNorm>();
  }
}

void GradientClip::set_optimizer_in_backward(OptimizerInBackward optimizer) {
  if (stepped_ == nullptr) {
    throw UsageError(units_.prefix() +
                     "set_optimizer_in_backward: no unit of the plan has optimizer_in_backward");
  }
  if (optimizer.norm_type) {
    require_norm_type(*optimizer.norm_type);
  }
  stepped_->type = optimizer.norm_type;
  std::vector<size_t> first(units_.states().size());  // of each unit's shards
  size_t shards = 0;
  for (const auto& [unit, handle] : units_.with_parameters()) {
    first[unit] = shards;
    for (size_t i = 0; handle.is_mixed() && i < handle.slots().size(); ++i) {
      shards += handle.is_frozen(i) ? 0 : 1;
    }
    shards += handle.is_mixed() ? 0 : 1;
  }
  const c10::Device device = units_.world().world().device();
  units_.executor().set_step([optimizer = std::move(optimizer), first = std::move(first),
                              norm = stepped_, device](UnitId unit, FlatParamHandle& handle) {
    const std::vector<ShardUpdate> updates = handle.gradient().updates(first[unit]);
    std::vector<at::Tensor> grads;
    for (const ShardUpdate& update : updates) {
      grads.push_back(update.grad);
    }
    if (norm->type && device.is_cpu()) {
      norm->part = add_parts(norm->part, norm_part(grads, *norm->type), *norm->type);
    } else if (norm->type) {
      norm->parts.push_back(norm_parts_on_device(grads, *norm->type, device));
    }
    optimizer.step(updates);
  });
}

void GradientClip::require_optimizer() const {
  if (stepped_ != nullptr && !units_.executor().has_step()) {
    throw UsageError(units_.prefix() +
                     "the plan has optimizer_in_backward; call set_optimizer_in_backward() before "
                     "the first forward");
  }
}

void GradientClip::begin_backward() {
  if (stepped_ != nullptr) {
    stepped_->part = 0;
    stepped_->parts.clear();
  }
}

double ShardedModel::clip_grad_norm(double max_norm, double norm_type) {
  const at::Tensor norm = issue_clip_grad_norm(max_norm, norm_type);
  world().world().wait_for_device();  // ends after the timeout, unlike a copy to the host
  return norm.item<double>();
}

at::Tensor GradientClip::issue(double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  if (stepped_ != nullptr && (!std::isinf(max_norm) || stepped_->type != norm_type)) {
    throw UsageError(units_.prefix() +
                     (std::isinf(max_norm)
                          ? "clip_grad_norm: optimizer_in_backward has used gradients "
                            "whose norm was not asked for; set norm_type in "
                            "set_optimizer_in_backward()"
                          : "clip_grad_norm: optimizer_in_backward has used gradients "
                            "already; expected no clipping"));
  }
  std::vector<at::Tensor> grads;
  for (const at::Tensor& shard : units_.shards()) {
    if (shard.grad().defined()) {
      grads.push_back(shard.grad());
    }
  }
  if (!units_.world().world().device().is_cpu()) {
    return issue_on_device(grads, max_norm, norm_type);
  }
  std::vector<double> parts = norm_parts(units_, grads, norm_type);
  if (stepped_ != nullptr) {
    parts.push_back(stepped_->part);
  }
  if (units_.plan().shards() > 1 && !parts.empty()) {
    const at::Tensor shared = at::tensor(parts, norm_dtype(grads));
    dist::Communicator& shard = units_.shard_group();
    shard.wait(shard.all_reduce(shared,
                                std::isinf(norm_type) ? dist::ReduceOp::kMax : dist::ReduceOp::kSum,
                                {kNoUnit, "the gradient norm"}));
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i] = shared[static_cast<int64_t>(i)].item<double>();
    }
  }
  double total = 0;
  for (const double part : parts) {
    total = add_parts(total, part, norm_type);
  }
  const double norm = norm_of_parts(total, norm_type);
  clip_to(grads, norm, max_norm);
  return at::scalar_tensor(norm, at::kDouble);
}

// The same without a value that the host has to wait for.
at::Tensor GradientClip::issue_on_device(const std::vector<at::Tensor>& grads,
                                         double max_norm,
                                         double norm_type) {
  const bool maximum = std::isinf(norm_type);
  const bool by_parameter = units_.plan().plan.layout == plan::Layout::kPerParameter && !maximum;
  at::Tensor parts = norm_parts_on_device(by_parameter ? gradients_of_parameters(units_) : grads,
                                          norm_type, units_.world().world().device());
  if (stepped_ != nullptr) {
    std::vector<at::Tensor> all{parts};
    all.insert(all.end(), stepped_->parts.begin(), stepped_->parts.end());
    parts = at::cat(all);
  }
  if (!by_parameter) {  // one part for each rank
    parts = parts.numel() == 0 ? at::zeros({1}, parts.options())
            : maximum          ? parts.amax(0, /*keepdim=*/true)
                               : parts.sum(0, /*keepdim=*/true);
  }
  if (units_.plan().shards() > 1 && parts.numel() > 0) {
    dist::Communicator& shard = units_.shard_group();
    shard.wait(shard.all_reduce(parts, maximum ? dist::ReduceOp::kMax : dist::ReduceOp::kSum,
                                {kNoUnit, "the gradient norm"}));
  }
  const at::Tensor norm = norm_on_device(parts, norm_type);
  if (clip_waits(grads, max_norm)) {
    units_.world().world().wait_for_device();
  }
  clip_on_device(grads, norm, max_norm);
  return norm;
}

}  // namespace shardlens::fsdp
