#include "core/models/rope.h"

#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include "core/base/error.h"

namespace shardlens::models {
namespace {

at::Tensor llama3_frequencies(const at::Tensor& plain, const plan::ModelConfig& config) {
  const auto original = static_cast<double>(config.rope_original_max_positions > 0
                                                ? config.rope_original_max_positions
                                                : config.max_positions);
  const double low_wavelength = original / config.rope_low_freq_factor;
  const double high_wavelength = original / config.rope_high_freq_factor;
  const at::Tensor wavelength = (2.0 * std::numbers::pi) * plain.reciprocal();
  const at::Tensor scaled =
      at::where(wavelength > low_wavelength, plain / config.rope_factor, plain);
  const at::Tensor smooth = (wavelength.reciprocal() * original - config.rope_low_freq_factor) /
                            (config.rope_high_freq_factor - config.rope_low_freq_factor);
  const at::Tensor blended = (1.0 - smooth) * scaled / config.rope_factor + smooth * scaled;
  const at::Tensor medium =
      at::logical_and(wavelength >= high_wavelength, wavelength <= low_wavelength);
  return at::where(medium, blended, scaled);
}

}  // namespace

RotaryEmbeddingImpl::RotaryEmbeddingImpl(const plan::ModelConfig& config) {
  const c10::NoGradGuard no_grad;
  const auto exponents =
      at::arange(0, config.head_dim, 2, at::kFloat) / static_cast<double>(config.head_dim);
  inverse_frequencies_ = at::pow(at::Scalar(config.rope_theta), exponents).reciprocal();
  if (config.rope_type == "linear") {
    inverse_frequencies_ = inverse_frequencies_ / config.rope_factor;
  } else if (config.rope_type == "llama3") {
    inverse_frequencies_ = llama3_frequencies(inverse_frequencies_, config);
  } else if (config.rope_type != "default") {
    throw InputError(config.source + "#/rope_parameters/rope_type",
                     "rope type '" + config.rope_type +
                         "' is not supported; expected default, linear or llama3");
  }
}

std::tuple<at::Tensor, at::Tensor> RotaryEmbeddingImpl::forward(const at::Tensor& hidden) {
  const int64_t tokens = hidden.size(1);
  const at::ScalarType dtype = hidden.scalar_type();
  if (!cos_.defined() || cos_.size(0) != tokens || cos_.scalar_type() != dtype ||
      cos_.device() != hidden.device()) {
    const c10::NoGradGuard no_grad;
    const at::Tensor half =
        at::arange(tokens, at::kFloat).unsqueeze(1) * inverse_frequencies_.unsqueeze(0);
    const at::Tensor angles = at::cat({half, half}, -1).unsqueeze(1);
    cos_ = angles.cos().to(hidden.device(), dtype);
    sin_ = angles.sin().to(hidden.device(), dtype);
  }
  return {cos_, sin_};
}

}  // namespace shardlens::models
