#include "core/models/gpt2.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/container/modulelist.h>

#include "core/models/root_model.h"

// Shapes  B batch, T tokens, D hidden, N heads, H head dim, V vocabulary.
// Source  transformers 5.23 models/gpt2/modeling_gpt2.py.
namespace shardlens::models {
namespace {

class GPT2AttentionImpl : public torch::nn::Module {
 public:
  GPT2AttentionImpl(const plan::ModelConfig& config, int64_t layer, Init init)
      : head_dim_(config.hidden_size / config.heads) {
    const int64_t hidden = config.hidden_size;
    c_attn_ = register_module("c_attn", Conv1D(hidden, 3 * hidden, init));
    c_proj_ = register_module("c_proj", Conv1D(hidden, hidden, init));
    attn_dropout_ = register_module("attn_dropout", Dropout());
    resid_dropout_ = register_module("resid_dropout", Dropout());
    if (config.scale_attention_weights) {
      scale_ = 1.0 / std::sqrt(static_cast<double>(head_dim_));
    }
    if (config.scale_attention_by_inverse_layer) {
      scale_ /= static_cast<double>(layer + 1);
    }
  }

  at::Tensor forward(const at::Tensor& x_BTD) {
    const auto qkv = c_attn_(x_BTD).split(x_BTD.size(2), 2);
    const at::Tensor out_BNTH =
        at::scaled_dot_product_attention(heads_of(qkv[0]), heads_of(qkv[1]), heads_of(qkv[2]),
                                         /*attn_mask=*/{},
                                         /*dropout_p=*/0.0,
                                         /*is_causal=*/x_BTD.size(1) > 1, scale_);
    return resid_dropout_(c_proj_(out_BNTH.transpose(1, 2).flatten(2)));
  }

 private:
  at::Tensor heads_of(const at::Tensor& x) const {
    return x.view({x.size(0), x.size(1), -1, head_dim_}).transpose(1, 2);
  }

  Conv1D c_attn_{nullptr}, c_proj_{nullptr};
  Dropout attn_dropout_{nullptr}, resid_dropout_{nullptr};
  int64_t head_dim_;
  double scale_ = 1.0;
};
SHARDLENS_MODULE(GPT2Attention);

class GPT2MLPImpl : public torch::nn::Module {
 public:
  GPT2MLPImpl(const plan::ModelConfig& config, Init init) {
    c_fc_ = register_module("c_fc", Conv1D(config.hidden_size, config.intermediate_size, init));
    c_proj_ = register_module("c_proj", Conv1D(config.intermediate_size, config.hidden_size, init));
    act_ = register_module("act", Activation(config.activation));
    dropout_ = register_module("dropout", Dropout());
  }

  at::Tensor forward(const at::Tensor& x_BTD) { return dropout_(c_proj_(act_(c_fc_(x_BTD)))); }

 private:
  Conv1D c_fc_{nullptr}, c_proj_{nullptr};
  Activation act_{nullptr};
  Dropout dropout_{nullptr};
};
SHARDLENS_MODULE(GPT2MLP);

class GPT2BlockImpl : public torch::nn::Module {
 public:
  GPT2BlockImpl(const plan::ModelConfig& config, int64_t layer, Init init) {
    const int64_t hidden = config.hidden_size;
    ln_1_ = register_module("ln_1", LayerNorm(hidden, config.norm_eps, init));
    attn_ = register_module("attn", GPT2Attention(config, layer, init));
    ln_2_ = register_module("ln_2", LayerNorm(hidden, config.norm_eps, init));
    mlp_ = register_module("mlp", GPT2MLP(config, init));
  }

  at::Tensor forward(const at::Tensor& x_BTD) {
    const at::Tensor h_BTD = attn_(ln_1_(x_BTD)) + x_BTD;
    return h_BTD + mlp_(ln_2_(h_BTD));
  }

 private:
  LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  GPT2Attention attn_{nullptr};
  GPT2MLP mlp_{nullptr};
};
SHARDLENS_MODULE(GPT2Block);

class GPT2ModelImpl : public torch::nn::Module {
 public:
  GPT2ModelImpl(const plan::ModelConfig& config, Init init) {
    wte_ = register_module("wte", Embedding(config.vocab_size, config.hidden_size, init));
    wpe_ = register_module("wpe", Embedding(config.max_positions, config.hidden_size, init));
    drop_ = register_module("drop", Dropout());
    torch::nn::ModuleList list = register_module("h", torch::nn::ModuleList());
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      blocks_.emplace_back(config, layer, init);
      list->push_back(blocks_.back());
    }
    ln_f_ = register_module("ln_f", LayerNorm(config.hidden_size, config.norm_eps, init));
  }

  at::Tensor forward(const at::Tensor& tokens_BT) {
    const at::Tensor positions = at::arange(tokens_BT.size(1), tokens_BT.options()).unsqueeze(0);
    // Two statements: the evaluation order of the operands of one expression is unspecified.
    const at::Tensor tokens_BTD = wte_(tokens_BT);
    at::Tensor hidden_BTD = drop_(tokens_BTD + wpe_(positions));
    for (GPT2Block& block : blocks_) {
      hidden_BTD = block(hidden_BTD);
    }
    return ln_f_(hidden_BTD);
  }

  [[nodiscard]] const at::Tensor& embedding() const { return wte_->weight; }

 private:
  Embedding wte_{nullptr}, wpe_{nullptr};
  Dropout drop_{nullptr};
  std::vector<GPT2Block> blocks_;
  LayerNorm ln_f_{nullptr};
};
SHARDLENS_MODULE(GPT2Model);

class GPT2LMHeadModelImpl : public CausalLm {
 public:
  GPT2LMHeadModelImpl(const plan::ModelConfig& config, Init init) : config_(config) {
    transformer_ = register_module("transformer", GPT2Model(config, init));
    lm_head_ = register_module("lm_head",
                               config.tie_word_embeddings
                                   ? Linear(transformer_->embedding())
                                   : Linear(config.hidden_size, config.vocab_size, false, init));
  }

  at::Tensor forward(const at::Tensor& tokens_BT) {
    require_positions(tokens_BT, config_);
    return lm_head_(transformer_(tokens_BT));
  }

 private:
  plan::ModelConfig config_;
  GPT2Model transformer_{nullptr};
  Linear lm_head_{nullptr};
};

}  // namespace

std::shared_ptr<CausalLm> make_gpt2(const plan::ModelConfig& config, Init init) {
  return std::make_shared<RootModel<GPT2LMHeadModelImpl>>(config, init);
}

}  // namespace shardlens::models
