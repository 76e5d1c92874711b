#pragma once

#include <ATen/core/TensorBody.h>

// The element-wise parts of the models as single differentiable operators. transformers builds each
// of them from several aten operators, whose intermediate tensors cost more than the arithmetic. In
// fp32 on the CPU each is one pass in forward and one in backward (recorded as "shardlens::…");
// otherwise the same aten operators as in transformers run.
namespace shardlens::models {

// x · weightᵀ + bias (`transposed`, weight [E, D]) or x · weight + bias (weight [D, E]); bias may
// be undefined. Makes one autograd node, whereas aten makes one more per view, and a contiguous
// weight gradient, which can be reduced without a copy. Matrix products are aten::mm and
// aten::addmm, in the order of aten's own backward formulas. Any dtype.
[[nodiscard]] at::Tensor project(const at::Tensor& input,
                                 const at::Tensor& weight,
                                 const at::Tensor& bias,
                                 bool transposed);

// (offset + weight) · (x · rsqrt(mean(x²) + epsilon)) over the last dimension; statistics in fp32,
// and with an offset everything.
// Source  transformers LlamaRMSNorm, Gemma2RMSNorm (offset 1).
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& input,
                                  const at::Tensor& weight,
                                  double epsilon,
                                  double offset = 0.0);

// x · cos + rotate_half(x) · sin.
// Shapes  x [B, T, N, H]; cos, sin [T, 1, H], without gradient; the two halves of H are equal.
// Source  transformers apply_rotary_pos_emb.
[[nodiscard]] at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// silu(gate) · up.
[[nodiscard]] at::Tensor silu_multiply(const at::Tensor& gate, const at::Tensor& up);

// cap · tanh(x / cap).
[[nodiscard]] at::Tensor soft_cap(const at::Tensor& x, double cap);

// Mean next-token cross entropy in fp32. logits [N, V], targets int64 [N].
[[nodiscard]] at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace shardlens::models
