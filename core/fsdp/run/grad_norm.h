#pragma once

#include <span>

#include <ATen/core/TensorBody.h>

namespace shardlens::fsdp {

// The p-norm over tensors of several ranks or strategies, computed in parts: norm_part() of each
// part's tensors, add_parts(), norm_of_parts() of the sum, then clip_to() for each part's tensors.
// Errors  UsageError if `norm_type` is not a positive number or inf.
// Source  torch/nn/utils/clip_grad.py, torch 2.11.

void require_norm_type(double norm_type);
[[nodiscard]] double norm_part(std::span<const at::Tensor> grads, double norm_type);
[[nodiscard]] double add_parts(double part, double other, double norm_type);
[[nodiscard]] double norm_of_parts(double parts, double norm_type);
// Scales by min(1, max_norm / (norm + 1e-6)); does nothing if `max_norm` is infinite.
void clip_to(std::span<const at::Tensor> grads, double norm, double max_norm);

// The dtype that norms of ranks are added up in: fp32 as in PyTorch, except for a model in fp64.
[[nodiscard]] at::ScalarType norm_dtype(std::span<const at::Tensor> grads);

// For tensors on a device, and offloaded ones on the host. They do not wait for the device, except
// for the scale of offloaded gradients: norms are scalars on the device. Parts of tensors on the
// host follow those of the others.
// The norm of each tensor to the power of `norm_type`, or itself for inf; 0 for an empty one.
[[nodiscard]] at::Tensor norm_parts_on_device(std::span<const at::Tensor> tensors,
                                              double norm_type,
                                              c10::Device device);
// The norm of what norm_parts_on_device() returned.
[[nodiscard]] at::Tensor norm_on_device(const at::Tensor& parts, double norm_type);
void clip_on_device(std::span<const at::Tensor> grads, const at::Tensor& norm, double max_norm);
// Whether clip_on_device() will wait for the device.
[[nodiscard]] bool clip_waits(std::span<const at::Tensor> grads, double max_norm);

}  // namespace shardlens::fsdp
