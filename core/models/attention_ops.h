#pragma once

#include <ATen/core/TensorBody.h>

namespace shardlens::models {

// Attention whose scores are cap · tanh(q · kᵀ · scale / cap) + mask, which no kernel of LibTorch
// computes. One autograd node, recorded as "shardlens::capped_attention": it saves queries, keys
// and values, and computes the scores again in backward. Softmax is in fp32.
//
// Shapes  q [B, T, N, H], k and v [B, T, K, H] with K dividing N, mask [T, T] without gradient →
//         [B, T, N, H].
// Source  transformers 5.23 models/gemma2/modeling_gemma2.py, eager_attention_forward.
[[nodiscard]] at::Tensor capped_attention(const at::Tensor& q,
                                          const at::Tensor& k,
                                          const at::Tensor& v,
                                          const at::Tensor& mask,
                                          double scale,
                                          double cap);

}  // namespace shardlens::models
