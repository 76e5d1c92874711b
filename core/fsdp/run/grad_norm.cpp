#include "core/fsdp/run/grad_norm.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"

namespace shardlens::fsdp {

void require_norm_type(double norm_type) {
  if (!(norm_type > 0)) {
    throw UsageError("clip_grad_norm: norm type is " + std::to_string(norm_type) +
                     ", expected a positive number or inf");
  }
}

double norm_part(std::span<const at::Tensor> grads, double norm_type) {
  require_norm_type(norm_type);
  const at::NoGradGuard no_grad;
  double part = 0;
  for (const at::Tensor& grad : grads) {
    if (grad.numel() > 0) {  // some norm types are undefined for an empty tensor
      const double norm = at::linalg_vector_norm(grad, norm_type).item<double>();
      part = add_parts(part, std::isinf(norm_type) ? norm : std::pow(norm, norm_type), norm_type);
    }
  }
  return part;
}

double add_parts(double part, double other, double norm_type) {
  if (!std::isinf(norm_type)) {
    return part + other;
  }
  return other > part || std::isnan(other) ? other : part;  // std::max would drop NaN
}

double norm_of_parts(double parts, double norm_type) {
  return std::isinf(norm_type) ? parts : std::pow(parts, 1.0 / norm_type);
}

void clip_to(std::span<const at::Tensor> grads, double norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const double scale = std::isinf(max_norm) ? 1.0 : max_norm / (norm + 1e-6);
  if (scale < 1.0) {
    for (const at::Tensor& grad : grads) {
      grad.mul_(scale);
    }
  }
}

at::ScalarType norm_dtype(std::span<const at::Tensor> grads) {
  const bool fp64 = std::ranges::any_of(
      grads, [](const at::Tensor& grad) { return grad.scalar_type() == at::kDouble; });
  return fp64 ? at::kDouble : at::kFloat;
}

at::Tensor norm_parts_on_device(std::span<const at::Tensor> tensors,
                                double norm_type,
                                c10::Device device) {
  require_norm_type(norm_type);
  const at::NoGradGuard no_grad;
  const at::ScalarType dtype = norm_dtype(tensors);
  const at::TensorOptions options = at::TensorOptions(dtype).device(device);
  std::vector<at::Tensor> norms, on_host;
  for (const at::Tensor& tensor : tensors) {
    (tensor.is_cpu() && !device.is_cpu() ? on_host : norms)
        .push_back(tensor.numel() > 0 ? at::linalg_vector_norm(tensor, norm_type).to(dtype)
                                      : at::zeros({}, tensor.options().dtype(dtype)));
  }
  at::Tensor parts = norms.empty() ? at::zeros({0}, options) : at::stack(norms);
  if (!on_host.empty()) {
    parts = at::cat({parts, at::stack(on_host).to(device)});  // one copy
  }
  return std::isinf(norm_type) ? parts : parts.pow(norm_type);
}

at::Tensor norm_on_device(const at::Tensor& parts, double norm_type) {
  const at::NoGradGuard no_grad;
  if (parts.numel() == 0) {
    return at::zeros({}, parts.options());
  }
  return std::isinf(norm_type) ? parts.amax() : parts.sum().pow(1.0 / norm_type);
}

bool clip_waits(std::span<const at::Tensor> grads, double max_norm) {
  return !std::isinf(max_norm) &&
         std::ranges::any_of(grads, [](const at::Tensor& grad) { return grad.is_cpu(); });
}

void clip_on_device(std::span<const at::Tensor> grads, const at::Tensor& norm, double max_norm) {
  const at::NoGradGuard no_grad;
  if (std::isinf(max_norm)) {
    return;
  }
  const at::Tensor scale = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  std::vector<at::Tensor> of[2];  // on the device; offloaded ones, on the host
  for (const at::Tensor& grad : grads) {
    of[grad.is_cpu() ? 1 : 0].push_back(grad);
  }
  for (const std::vector<at::Tensor>& each : of) {
    if (!each.empty()) {
      at::_foreach_mul_(each, scale.to(each.front().device()));
    }
  }
}

}  // namespace shardlens::fsdp
