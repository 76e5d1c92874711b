#include "core/models/layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "core/base/error.h"
#include "core/models/ops.h"

namespace shardlens::models {

namespace {

double rounded_to(double value, at::ScalarType dtype) {
  const auto single = static_cast<float>(value);
  return dtype == at::kBFloat16 ? static_cast<float>(c10::BFloat16(single))
         : dtype == at::kHalf   ? static_cast<float>(c10::Half(single))
                                : single;
}

}  // namespace

at::Tensor make_parameter(at::IntArrayRef shape, Init init) {
  const auto options = at::TensorOptions(at::kFloat);
  at::Tensor parameter;
  if (init == Init::kNone) {
    parameter = at::empty({0}, options);
    parameter.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  } else {
    parameter = at::empty(shape, options);
  }
  parameter.set_requires_grad(true);
  return parameter;
}

LinearImpl::LinearImpl(int64_t in, int64_t out, bool with_bias, Init init)
    : weight(register_parameter("weight", make_parameter({out, in}, init))) {
  if (with_bias) {
    bias = register_parameter("bias", make_parameter({out}, init));
  }
}

LinearImpl::LinearImpl(const at::Tensor& tied) : weight(register_parameter("weight", tied)) {}

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  return project(input, weight, bias, /*transposed=*/true);
}

Conv1DImpl::Conv1DImpl(int64_t in, int64_t out, Init init)
    : weight(register_parameter("weight", make_parameter({in, out}, init))),
      bias(register_parameter("bias", make_parameter({out}, init))) {}

at::Tensor Conv1DImpl::forward(const at::Tensor& input) {
  return project(input, weight, bias, /*transposed=*/false);
}

EmbeddingImpl::EmbeddingImpl(int64_t count, int64_t features, Init init, const Options& options)
    : weight(register_parameter("weight", make_parameter({count, features}, init))),
      options_(options) {}

at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) {
  const at::Tensor rows = at::embedding(weight, indices, options_.padding_index);
  return options_.scale == 1.0 ? rows : rows * rounded_to(options_.scale, weight.scalar_type());
}

RMSNormImpl::RMSNormImpl(int64_t features, double epsilon, Init init, double offset)
    : weight(register_parameter("weight", make_parameter({features}, init))),
      epsilon_(epsilon),
      offset_(offset) {}

at::Tensor RMSNormImpl::forward(const at::Tensor& input) {
  return rms_norm(input, weight, epsilon_, offset_);
}

LayerNormImpl::LayerNormImpl(int64_t features, double epsilon, Init init)
    : weight(register_parameter("weight", make_parameter({features}, init))),
      bias(register_parameter("bias", make_parameter({features}, init))),
      epsilon_(epsilon) {}

at::Tensor LayerNormImpl::forward(const at::Tensor& input) {
  return at::layer_norm(input, {weight.size(0)}, weight, bias, epsilon_);
}

ActivationImpl::ActivationImpl(const std::string& name) {
  if (name == "silu") {
    kind_ = Kind::kSilu;
  } else if (name == "gelu") {
    kind_ = Kind::kGelu;
  } else if (name == "gelu_new" || name == "gelu_pytorch_tanh") {
    kind_ = Kind::kGeluTanh;
  } else if (name == "relu") {
    kind_ = Kind::kRelu;
  } else {
    throw InputError(
        "", "activation '" + name + "'; expected silu, gelu, gelu_new, gelu_pytorch_tanh or relu");
  }
}

at::Tensor ActivationImpl::forward(const at::Tensor& input) {
  switch (kind_) {
    case Kind::kSilu:
      return at::silu(input);
    case Kind::kGelu:
      return at::gelu(input);
    case Kind::kGeluTanh:
      return at::gelu(input, "tanh");
    case Kind::kRelu:
      break;
  }
  return at::relu(input);
}

}  // namespace shardlens::models
