#include "core/models/llama.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/container/modulelist.h>

#include "core/models/ops.h"
#include "core/models/root_model.h"
#include "core/models/rope.h"

// Shapes  B batch, T tokens, D hidden, N heads, K key-value heads, H head dim, V vocabulary.
// Source  transformers 5.23 models/llama/modeling_llama.py.
namespace shardlens::models {
namespace {

class LlamaAttentionImpl : public torch::nn::Module {
 public:
  LlamaAttentionImpl(const plan::ModelConfig& config, Init init)
      : head_dim_(config.head_dim), grouped_(config.kv_heads != config.heads) {
    const int64_t queries = config.heads * config.head_dim;
    const int64_t keys = config.kv_heads * config.head_dim;
    const int64_t hidden = config.hidden_size;
    const bool bias = config.attention_bias;
    q_proj_ = register_module("q_proj", Linear(hidden, queries, bias, init));
    k_proj_ = register_module("k_proj", Linear(hidden, keys, bias, init));
    v_proj_ = register_module("v_proj", Linear(hidden, keys, bias, init));
    o_proj_ = register_module("o_proj", Linear(queries, hidden, bias, init));
  }

  at::Tensor forward(const at::Tensor& x_BTD, const at::Tensor& cos, const at::Tensor& sin) {
    const at::Tensor q_BTNH = rotary(heads_of(q_proj_(x_BTD)), cos, sin);
    const at::Tensor k_BTKH = rotary(heads_of(k_proj_(x_BTD)), cos, sin);
    const at::Tensor v_BTKH = heads_of(v_proj_(x_BTD));
    const at::Tensor out_BNTH = at::scaled_dot_product_attention(
        q_BTNH.transpose(1, 2), k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2),
        /*attn_mask=*/{},
        /*dropout_p=*/0.0,
        /*is_causal=*/x_BTD.size(1) > 1,
        /*scale=*/std::nullopt,
        /*enable_gqa=*/grouped_);
    return o_proj_(out_BNTH.transpose(1, 2).flatten(2));
  }

 private:
  at::Tensor heads_of(const at::Tensor& x) const {
    return x.view({x.size(0), x.size(1), -1, head_dim_});
  }

  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
  int64_t head_dim_;
  bool grouped_;
};
SHARDLENS_MODULE(LlamaAttention);

class LlamaMLPImpl : public torch::nn::Module {
 public:
  LlamaMLPImpl(const plan::ModelConfig& config, Init init) {
    const int64_t hidden = config.hidden_size;
    const int64_t inner = config.intermediate_size;
    gate_proj_ = register_module("gate_proj", Linear(hidden, inner, config.mlp_bias, init));
    up_proj_ = register_module("up_proj", Linear(hidden, inner, config.mlp_bias, init));
    down_proj_ = register_module("down_proj", Linear(inner, hidden, config.mlp_bias, init));
    act_fn_ = register_module("act_fn", Activation(config.activation));
  }

  at::Tensor forward(const at::Tensor& x_BTD) {
    const at::Tensor gate = gate_proj_(x_BTD);
    const at::Tensor up = up_proj_(x_BTD);
    return down_proj_(act_fn_->is_silu() ? silu_multiply(gate, up) : act_fn_(gate) * up);
  }

 private:
  Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
  Activation act_fn_{nullptr};
};
SHARDLENS_MODULE(LlamaMLP);

class LlamaDecoderLayerImpl : public torch::nn::Module {
 public:
  LlamaDecoderLayerImpl(const plan::ModelConfig& config, Init init) {
    self_attn_ = register_module("self_attn", LlamaAttention(config, init));
    mlp_ = register_module("mlp", LlamaMLP(config, init));
    input_layernorm_ =
        register_module("input_layernorm", RMSNorm(config.hidden_size, config.norm_eps, init));
    post_attention_layernorm_ = register_module("post_attention_layernorm",
                                                RMSNorm(config.hidden_size, config.norm_eps, init));
  }

  at::Tensor forward(const at::Tensor& x_BTD, const at::Tensor& cos, const at::Tensor& sin) {
    const at::Tensor h_BTD = x_BTD + self_attn_(input_layernorm_(x_BTD), cos, sin);
    return h_BTD + mlp_(post_attention_layernorm_(h_BTD));
  }

 private:
  LlamaAttention self_attn_{nullptr};
  LlamaMLP mlp_{nullptr};
  RMSNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
};
SHARDLENS_MODULE(LlamaDecoderLayer);

class LlamaModelImpl : public torch::nn::Module {
 public:
  LlamaModelImpl(const plan::ModelConfig& config, Init init) {
    embed_tokens_ =
        register_module("embed_tokens", Embedding(config.vocab_size, config.hidden_size, init));
    torch::nn::ModuleList list = register_module("layers", torch::nn::ModuleList());
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      layers_.emplace_back(config, init);
      list->push_back(layers_.back());
    }
    norm_ = register_module("norm", RMSNorm(config.hidden_size, config.norm_eps, init));
    rotary_emb_ = register_module("rotary_emb", RotaryEmbedding(config));
  }

  at::Tensor forward(const at::Tensor& tokens_BT) {
    at::Tensor hidden_BTD = embed_tokens_(tokens_BT);
    const auto [cos, sin] = rotary_emb_(hidden_BTD);
    for (LlamaDecoderLayer& layer : layers_) {
      hidden_BTD = layer(hidden_BTD, cos, sin);
    }
    return norm_(hidden_BTD);
  }

  [[nodiscard]] const at::Tensor& embedding() const { return embed_tokens_->weight; }

 private:
  Embedding embed_tokens_{nullptr};
  std::vector<LlamaDecoderLayer> layers_;
  RMSNorm norm_{nullptr};
  RotaryEmbedding rotary_emb_{nullptr};
};
SHARDLENS_MODULE(LlamaModel);

class LlamaForCausalLMImpl : public CausalLm {
 public:
  LlamaForCausalLMImpl(const plan::ModelConfig& config, Init init) : config_(config) {
    model_ = register_module("model", LlamaModel(config, init));
    lm_head_ = register_module("lm_head",
                               config.tie_word_embeddings
                                   ? Linear(model_->embedding())
                                   : Linear(config.hidden_size, config.vocab_size, false, init));
  }

  at::Tensor forward(const at::Tensor& tokens_BT) {
    require_positions(tokens_BT, config_);
    return lm_head_(model_(tokens_BT));
  }

 private:
  plan::ModelConfig config_;
  LlamaModel model_{nullptr};
  Linear lm_head_{nullptr};
};

}  // namespace

std::shared_ptr<CausalLm> make_llama(const plan::ModelConfig& config, Init init) {
  return std::make_shared<RootModel<LlamaForCausalLMImpl>>(config, init);
}

}  // namespace shardlens::models
