#include "core/models/attention_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/softmax.h>
#include <ATen/record_function.h>

#include "core/models/named_node.h"

// Shapes  as in the header; G = N / K queries share a key: they are rows of one product, so that
//         keys and values are not repeated. S = B · K products.
namespace shardlens::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [B, T, N, H] → [S, G · T, H]; keys and values have N = K.
at::Tensor by_key_head(const at::Tensor& x_BTNH, int64_t key_heads) {
  const int64_t batch = x_BTNH.size(0), tokens = x_BTNH.size(1), head_dim = x_BTNH.size(3);
  return x_BTNH.reshape({batch, tokens, key_heads, -1, head_dim})
      .permute({0, 2, 3, 1, 4})
      .reshape({batch * key_heads, -1, head_dim});
}

// The inverse.
at::Tensor by_token(const at::Tensor& x_SRH, at::IntArrayRef shape, int64_t key_heads) {
  return x_SRH.view({shape[0], key_heads, -1, shape[1], shape[3]})
      .permute({0, 3, 1, 2, 4})
      .reshape(shape);
}

struct Scores {
  at::Tensor bent;     // tanh of the scaled scores over the cap
  at::Tensor weights;  // of the values; fp32
};

Scores scores_of(const at::Tensor& q_SRH,
                 const at::Tensor& k_STH,
                 const at::Tensor& mask,
                 double scale,
                 double cap) {
  Scores out;
  at::Tensor scores = at::bmm(q_SRH, k_STH.transpose(1, 2)).mul_(scale);
  out.bent = scores.div_(cap).tanh_();
  at::Tensor capped = out.bent * cap;
  if (mask.defined()) {  // the G groups of rows have the same mask
    capped.view({capped.size(0), -1, mask.size(0), mask.size(1)}).add_(mask);
  }
  out.weights = at::softmax(capped, -1, at::kFloat);
  return out;
}

struct CappedAttention : torch::autograd::Function<CappedAttention> {
  static constexpr std::string_view kNodeName = "CappedAttentionBackward";

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const std::optional<at::Tensor>& mask,
                            double scale,
                            double cap) {
    RECORD_FUNCTION("shardlens::capped_attention", c10::ArrayRef<const c10::IValue>{});
    const int64_t key_heads = k.size(2);
    ctx->save_for_backward({q, k, v, mask.value_or(at::Tensor())});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["cap"] = cap;
    const Scores scores = scores_of(by_key_head(q, key_heads), by_key_head(k, key_heads),
                                    mask.value_or(at::Tensor()), scale, cap);
    return by_token(at::bmm(scores.weights.to(v.scalar_type()), by_key_head(v, key_heads)),
                    q.sizes(), key_heads);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    RECORD_FUNCTION("shardlens::capped_attention_backward", c10::ArrayRef<const c10::IValue>{});
    const variable_list saved = ctx->get_saved_variables();
    const double scale = ctx->saved_data["scale"].toDouble();
    const double cap = ctx->saved_data["cap"].toDouble();
    const int64_t key_heads = saved[1].size(2);
    const at::Tensor q = by_key_head(saved[0], key_heads);
    const at::Tensor k = by_key_head(saved[1], key_heads);
    const at::Tensor v = by_key_head(saved[2], key_heads);
    const at::Tensor grad = by_key_head(grads[0], key_heads);
    const Scores scores = scores_of(q, k, saved[3], scale, cap);
    const at::Tensor v_grad = at::bmm(scores.weights.to(grad.scalar_type()).transpose(1, 2), grad);
    // Through the softmax, in fp32; then through cap · tanh(x / cap).
    at::Tensor by_weights = at::bmm(grad, v.transpose(1, 2)).to(at::kFloat);
    const at::Tensor shared = (by_weights * scores.weights).sum(-1, /*keepdim=*/true);
    const at::Tensor by_scores = by_weights.sub_(shared)
                                     .mul_(scores.weights)
                                     .mul_(1 - scores.bent.to(at::kFloat).square())
                                     .mul_(scale)
                                     .to(q.scalar_type());
    const at::Tensor q_grad = at::bmm(by_scores, k);
    const at::Tensor k_grad = at::bmm(by_scores.transpose(1, 2), q);
    return {by_token(q_grad, saved[0].sizes(), key_heads),
            by_token(k_grad, saved[1].sizes(), key_heads),
            by_token(v_grad, saved[2].sizes(), key_heads),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor capped_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const at::Tensor& mask,
                            double scale,
                            double cap) {
  // nullopt instead of an undefined tensor: apply() reads the device of its tensors.
  return CappedAttention::apply(q, k, v, mask.defined() ? std::optional(mask) : std::nullopt, scale,
                                cap);
}

}  // namespace shardlens::models
