// The gradient norm of a Root.
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
#include "core/fsdp/run/root.h"

namespace shardlens::fsdp {
namespace {

std::vector<at::Tensor> gradients_of_parameters(
    const std::vector<std::shared_ptr<FsdpState>>& states) {
  std::vector<at::Tensor> grads;
  for (const auto& state : states) {
    for (size_t i = 0; state->handle() != nullptr && i < state->handle()->slots().size(); ++i) {
      const at::Tensor& grad = state->handle()->slots()[i].parameter.mutable_grad();
      if (grad.defined()) {
        grads.push_back(grad);
      }
    }
  }
  return grads;
}

// FSDP1 sums the parts of a rank before the all-reduce. FSDP2, whose norms are DTensors,
// all-reduces one part per parameter, but only one value for the maximum norm.
std::vector<double> norm_parts(const std::vector<std::shared_ptr<FsdpState>>& states,
                               const std::vector<at::Tensor>& grads,
                               plan::Layout layout,
                               double norm_type) {
  if (layout == plan::Layout::kFlat || std::isinf(norm_type)) {
    return {norm_part(grads, norm_type)};
  }
  std::vector<double> parts;
  for (const at::Tensor& grad : gradients_of_parameters(states)) {
    parts.push_back(norm_part({&grad, 1}, norm_type));
  }
  return parts;
}

}  // namespace

// Written by the thread that steps, read by the one that trains after backward has waited for it.
struct Root::SteppedNorm {
  std::optional<double> type;
  double part = 0;                // CPU
  std::vector<at::Tensor> parts;  // device
};

void Root::set_optimizer_in_backward(OptimizerInBackward optimizer) {
  settle();
  if (stepped_ == nullptr) {
    throw UsageError(prefix() +
                     "set_optimizer_in_backward: no unit of the plan has optimizer_in_backward");
  }
  if (optimizer.norm_type) {
    require_norm_type(*optimizer.norm_type);
  }
  stepped_->type = optimizer.norm_type;
  std::vector<size_t> first;  // of each unit's shards
  size_t shards = 0;
  for (const auto& state : states_) {
    first.push_back(shards);
    const FlatParamHandle* handle = state->handle();
    for (size_t i = 0; handle != nullptr && handle->is_mixed() && i < handle->slots().size(); ++i) {
      shards += handle->is_frozen(i) ? 0 : 1;
    }
    shards += handle != nullptr && !handle->is_mixed() ? 1 : 0;
  }
  const c10::Device device = options_.world->world().device();
  executor_->set_step([optimizer = std::move(optimizer), first = std::move(first), norm = stepped_,
                       device](UnitId unit, FlatParamHandle& handle) {
    const std::vector<ShardUpdate> updates = handle.updates(first[unit]);
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

void Root::require_optimizer() const {
  if (stepped_ != nullptr && !executor_->has_step()) {
    throw UsageError(prefix() +
                     "the plan has optimizer_in_backward; call set_optimizer_in_backward() before "
                     "the first forward");
  }
}

void Root::begin_stepped_norm() {
  if (stepped_ == nullptr && plan_.steps_in_backward()) {
    stepped_ = std::make_shared<SteppedNorm>();
  }
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

at::Tensor Root::issue_clip_grad_norm(double max_norm, double norm_type) {
  settle();
  const at::NoGradGuard no_grad;
  adopt_user_grads();
  if (stepped_ != nullptr && (!std::isinf(max_norm) || stepped_->type != norm_type)) {
    throw UsageError(prefix() + (std::isinf(max_norm)
                                     ? "clip_grad_norm: optimizer_in_backward has used gradients "
                                       "whose norm was not asked for; set norm_type in "
                                       "set_optimizer_in_backward()"
                                     : "clip_grad_norm: optimizer_in_backward has used gradients "
                                       "already; expected no clipping"));
  }
  std::vector<at::Tensor> grads;
  for (const at::Tensor& shard : shards_) {
    if (shard.grad().defined()) {
      grads.push_back(shard.grad());
    }
  }
  if (!options_.world->world().device().is_cpu()) {
    return clip_on_device(grads, max_norm, norm_type);
  }
  std::vector<double> parts = norm_parts(states_, grads, plan_.plan.layout, norm_type);
  if (stepped_ != nullptr) {
    parts.push_back(stepped_->part);
  }
  if (plan_.shards() > 1 && !parts.empty()) {
    const at::Tensor shared = at::tensor(parts, norm_dtype(grads));
    dist::Communicator& shard = shard_group();
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
at::Tensor Root::clip_on_device(const std::vector<at::Tensor>& grads,
                                double max_norm,
                                double norm_type) {
  const bool maximum = std::isinf(norm_type);
  const bool by_parameter = plan_.plan.layout == plan::Layout::kPerParameter && !maximum;
  at::Tensor parts = norm_parts_on_device(by_parameter ? gradients_of_parameters(states_) : grads,
                                          norm_type, options_.world->world().device());
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
  if (plan_.shards() > 1 && parts.numel() > 0) {
    dist::Communicator& shard = shard_group();
    shard.wait(shard.all_reduce(parts, maximum ? dist::ReduceOp::kMax : dist::ReduceOp::kSum,
                                {kNoUnit, "the gradient norm"}));
  }
  const at::Tensor norm = norm_on_device(parts, norm_type);
  if (clip_waits(grads, max_norm)) {
    options_.world->world().wait_for_device();
  }
  fsdp::clip_on_device(grads, norm, max_norm);
  return norm;
}

}  // namespace shardlens::fsdp
