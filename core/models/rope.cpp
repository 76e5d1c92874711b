#include "core/models/rope.h"

#include <limits>
#include <numbers>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
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

// 1 / theta^(2 i / H), scaled as the config says.
at::Tensor frequencies(const plan::ModelConfig& config, double theta, const std::string& type) {
  const auto exponents =
      at::arange(0, config.head_dim, 2, at::kFloat) / static_cast<double>(config.head_dim);
  const at::Tensor plain = at::pow(at::Scalar(theta), exponents).reciprocal();
  if (type == "default") {
    return plain;
  }
  if (type == "linear") {
    return plain / config.rope_factor;
  }
  if (type == "llama3") {
    return llama3_frequencies(plain, config);
  }
  throw InputError(config.source + "#/rope_parameters/rope_type",
                   "rope type '" + type + "' is not supported; expected default, linear or llama3");
}

void rotate_to(Positions& out, const at::Tensor& frequencies, const at::Tensor& hidden) {
  const at::Tensor half =
      at::arange(hidden.size(1), at::kFloat).unsqueeze(1) * frequencies.unsqueeze(0);
  const at::Tensor angles = at::cat({half, half}, -1).unsqueeze(1);
  out.cos = angles.cos().to(hidden.device(), hidden.scalar_type());
  out.sin = angles.sin().to(hidden.device(), hidden.scalar_type());
}

// 0 where token i attends to token j (i - window < j <= i), otherwise -infinity.
at::Tensor mask_of(int64_t window, const at::Tensor& hidden) {
  const int64_t tokens = hidden.size(1);
  const at::Tensor at_all = at::ones({tokens, tokens}, at::kBool);
  const at::Tensor attends =
      at_all.tril().logical_and(at_all.triu(window > 0 ? 1 - window : 1 - tokens));
  return at::zeros({tokens, tokens}, at::kFloat)
      .masked_fill(attends.logical_not(), -std::numeric_limits<float>::infinity())
      .to(hidden.device(), hidden.scalar_type());
}

}  // namespace

RotaryEmbeddingImpl::RotaryEmbeddingImpl(const plan::ModelConfig& config)
    : window_(config.windowed.empty() ? 0 : config.sliding_window), masks_(config.score_cap > 0) {
  const c10::NoGradGuard no_grad;
  full_frequencies_ = frequencies(config, config.rope_theta, config.rope_type);
  windowed_frequencies_ = config.rope_local_theta > 0
                              ? frequencies(config, config.rope_local_theta, "default")
                              : full_frequencies_;
}

LayerPositions RotaryEmbeddingImpl::forward(const at::Tensor& hidden) {
  const int64_t tokens = hidden.size(1);
  const at::Tensor& known = positions_.full.cos;
  if (!known.defined() || known.size(0) != tokens || known.scalar_type() != hidden.scalar_type() ||
      known.device() != hidden.device()) {
    const c10::NoGradGuard no_grad;
    LayerPositions all;
    rotate_to(all.full, full_frequencies_, hidden);
    all.full.mask = masks_ ? mask_of(0, hidden) : at::Tensor();
    all.windowed = all.full;
    if (windowed_frequencies_.unsafeGetTensorImpl() != full_frequencies_.unsafeGetTensorImpl()) {
      rotate_to(all.windowed, windowed_frequencies_, hidden);
    }
    if (window_ > 0 && window_ < tokens) {
      all.windowed.mask = mask_of(window_, hidden);
    }
    positions_ = all;
  }
  return positions_;
}

}  // namespace shardlens::models
