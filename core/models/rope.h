#pragma once

#include <cstdint>

#include <ATen/core/TensorBody.h>
#include <torch/nn/module.h>

#include "core/model/model_config.h"
#include "core/module/hookable.h"
#include "core/tree/module_tree.h"

namespace shardlens::models {

// The tables that attention needs for the tokens' positions 0 … T-1.
//
// Shapes  cos, sin [T, 1, H], ready to broadcast over the heads of [B, T, N, H]; the two halves
//         of H are equal. mask [T, T], added to the scores: 0 or -infinity.
struct Positions {
  at::Tensor cos, sin;
  at::Tensor
      mask;  // undefined: a token attends to all earlier ones, and nothing but that is needed
};

// The positions of layers that attend to all earlier tokens, and of those that have a window.
struct LayerPositions {
  Positions full, windowed;
};

// Rotary position embedding of decoders. Everything is computed once and reused in later steps.
//
// Source  transformers LlamaRotaryEmbedding, Gemma3RotaryEmbedding and modeling_rope_utils: types
//         default, linear, llama3; masking_utils.
class RotaryEmbeddingImpl : public torch::nn::Module {
 public:
  // Errors: InputError naming the rope type if it is not one of the three.
  explicit RotaryEmbeddingImpl(const plan::ModelConfig& config);
  // For `hidden` [B, T, D], in its dtype; cos and sin are computed in fp32.
  LayerPositions forward(const at::Tensor& hidden);

 private:
  at::Tensor full_frequencies_, windowed_frequencies_;  // fp32 [H / 2]
  int64_t window_;                                      // 0: no layer has one
  bool masks_;  // attention has no kernel that skips later tokens by itself
  LayerPositions positions_;
};
SHARDLENS_MODULE(RotaryEmbedding);

}  // namespace shardlens::models
