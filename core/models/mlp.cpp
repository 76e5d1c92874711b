#include "core/models/mlp.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/container/modulelist.h>

#include "core/models/root_model.h"

// Shapes  B batch, T tokens, D hidden, V vocabulary.
namespace shardlens::models {
namespace {

class MlpBlockImpl : public torch::nn::Module {
 public:
  MlpBlockImpl(const plan::ModelConfig& config, Init init) {
    const int64_t hidden = config.hidden_size;
    const int64_t inner = config.intermediate_size;
    fc1_ = register_module("fc1", Linear(hidden, inner, true, init));
    fc2_ = register_module("fc2", Linear(inner, hidden, true, init));
  }

  at::Tensor forward(const at::Tensor& x_BTD) { return x_BTD + fc2_(at::relu(fc1_(x_BTD))); }

 private:
  Linear fc1_{nullptr}, fc2_{nullptr};
};
SHARDLENS_MODULE(MlpBlock);

class MlpForCausalLMImpl : public CausalLm {
 public:
  MlpForCausalLMImpl(const plan::ModelConfig& config, Init init) : config_(config) {
    embed_tokens_ =
        register_module("embed_tokens", Embedding(config.vocab_size, config.hidden_size, init));
    torch::nn::ModuleList list = register_module("layers", torch::nn::ModuleList());
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      layers_.emplace_back(config, init);
      list->push_back(layers_.back());
    }
    lm_head_ = register_module("lm_head",
                               config.tie_word_embeddings
                                   ? Linear(embed_tokens_->weight)
                                   : Linear(config.hidden_size, config.vocab_size, false, init));
  }

  at::Tensor forward(const at::Tensor& tokens_BT) {
    require_positions(tokens_BT, config_);
    at::Tensor hidden_BTD = embed_tokens_(tokens_BT);
    for (MlpBlock& layer : layers_) {
      hidden_BTD = layer(hidden_BTD);
    }
    return lm_head_(hidden_BTD);
  }

 private:
  plan::ModelConfig config_;
  Embedding embed_tokens_{nullptr};
  std::vector<MlpBlock> layers_;
  Linear lm_head_{nullptr};
};

}  // namespace

std::shared_ptr<CausalLm> make_mlp(const plan::ModelConfig& config, Init init) {
  return std::make_shared<RootModel<MlpForCausalLMImpl>>(config, init);
}

}  // namespace shardlens::models
