#pragma once

#include <cstdint>

#include <ATen/core/TensorBody.h>
#include <torch/nn/module.h>

#include "core/model/model_config.h"
#include "core/models/layers.h"
#include "core/models/rope.h"
#include "core/module/hookable.h"
#include "core/tree/module_tree.h"

namespace shardlens::models {

// Causal attention of decoders with a product each for queries, keys and values: grouped heads,
// biases, norms of queries and keys, windows and capped scores, as the family's row and the config
// say. The names of its modules are those of the row.
//
// Shapes  B batch, T tokens, D hidden, N heads, K key-value heads, H head dim.
// Source  transformers 5.23 models/<family>/modeling_<family>.py.
class DecoderAttentionImpl : public torch::nn::Module {
 public:
  DecoderAttentionImpl(const plan::ModelConfig& config, Init init);
  // x [B, T, D] → [B, T, D].
  at::Tensor forward(const at::Tensor& x, const Positions& positions);

 private:
  Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, output_{nullptr};
  RMSNorm query_norm_{nullptr}, key_norm_{nullptr};  // empty: not normalised
  int64_t head_dim_;
  double scale_;  // of the scores
  double cap_;    // 0: scores are not capped
  bool grouped_;
};
SHARDLENS_MODULE(DecoderAttention);

}  // namespace shardlens::models
