#pragma once

#include <tuple>

#include <ATen/core/TensorBody.h>
#include <torch/nn/module.h>

#include "core/module/hookable.h"
#include "core/plan/module_tree.h"

namespace shardlens::models {

// Rotary position embedding of Llama: cos and sin for positions 0 … T-1. They are computed once and
// reused in later steps.
//
// Shapes  [T, 1, H], ready to broadcast over the heads of [B, T, N, H]; halves of H are equal.
// Source  transformers LlamaRotaryEmbedding and modeling_rope_utils: types default, linear, llama3.
class RotaryEmbeddingImpl : public torch::nn::Module {
 public:
  // Errors: InputError naming the rope type if it is not one of the three.
  explicit RotaryEmbeddingImpl(const plan::ModelConfig& config);
  // {cos, sin} for `hidden` [B, T, D], in its dtype, computed in fp32.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& hidden);

 private:
  at::Tensor inverse_frequencies_;  // fp32 [H / 2]
  at::Tensor cos_, sin_;
};
SHARDLENS_MODULE(RotaryEmbedding);

}  // namespace shardlens::models
