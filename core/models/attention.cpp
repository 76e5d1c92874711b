#include "core/models/attention.h"

#include <cmath>
#include <string>

#include <ATen/ops/scaled_dot_product_attention.h>

#include "core/base/error.h"
#include "core/model/families/decoder_family.h"
#include "core/models/attention_ops.h"
#include "core/models/ops.h"

namespace shardlens::models {

DecoderAttentionImpl::DecoderAttentionImpl(const plan::ModelConfig& config, Init init)
    : head_dim_(config.head_dim),
      scale_(1.0 / std::sqrt(config.query_scalar > 0 ? config.query_scalar
                                                     : static_cast<double>(config.head_dim))),
      cap_(config.score_cap),
      grouped_(config.kv_heads != config.heads) {
  const plan::DecoderFamily& family = plan::decoder_family_of(config);
  const int64_t queries = config.heads * config.head_dim;
  const int64_t keys = config.kv_heads * config.head_dim;
  const bool bias = plan::has_bias(family.query_bias, config.attention_bias);
  for (const plan::Slot& slot : family.attention) {
    const std::string name(slot.name);
    const auto linear = [&](int64_t in, int64_t out, bool with_bias) {
      return register_module(name, Linear(in, out, with_bias, init));
    };
    const auto norm = [&] {
      return register_module(
          name, RMSNorm(head_dim_, config.norm_eps, init, family.offset_norms ? 1.0 : 0.0));
    };
    switch (slot.part) {
      case plan::Part::kQuery:
        query_ = linear(config.hidden_size, queries, bias);
        break;
      case plan::Part::kKey:
        key_ = linear(config.hidden_size, keys, bias);
        break;
      case plan::Part::kValue:
        value_ = linear(config.hidden_size, keys, bias);
        break;
      case plan::Part::kOutput:
        output_ = linear(queries, config.hidden_size,
                         plan::has_bias(family.output_bias, config.attention_bias));
        break;
      case plan::Part::kQueryNorm:
        query_norm_ = norm();
        break;
      case plan::Part::kKeyNorm:
        key_norm_ = norm();
        break;
      default:
        SHARDLENS_CHECK(false, "a family that trains has a part of attention that is not built");
    }
  }
}

at::Tensor DecoderAttentionImpl::forward(const at::Tensor& x, const Positions& positions) {
  const auto heads_of = [&](Linear& projection) {
    return projection(x).view({x.size(0), x.size(1), -1, head_dim_});
  };
  const auto rotated = [&](Linear& projection, RMSNorm& norm) {
    const at::Tensor heads = heads_of(projection);
    return rotary(norm.is_empty() ? heads : norm(heads), positions.cos, positions.sin);
  };
  const at::Tensor q_BTNH = rotated(query_, query_norm_);
  const at::Tensor k_BTKH = rotated(key_, key_norm_);
  const at::Tensor v_BTKH = heads_of(value_);
  if (cap_ > 0) {
    return output_(
        capped_attention(q_BTNH, k_BTKH, v_BTKH, positions.mask, scale_, cap_).flatten(2));
  }
  const bool masked = positions.mask.defined();
  const at::Tensor out_BNTH = at::scaled_dot_product_attention(
      q_BTNH.transpose(1, 2), k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2),
      /*attn_mask=*/masked ? std::optional(positions.mask) : std::nullopt,
      /*dropout_p=*/0.0,
      /*is_causal=*/!masked && x.size(1) > 1,
      /*scale=*/scale_,
      /*enable_gqa=*/grouped_);
  return output_(out_BNTH.transpose(1, 2).flatten(2));
}

}  // namespace shardlens::models
