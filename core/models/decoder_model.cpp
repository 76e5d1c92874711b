#include "core/models/decoder_model.h"

#include <cmath>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <torch/nn/modules/container/modulelist.h>

#include "core/base/error.h"
#include "core/model/families/decoder_family.h"
#include "core/models/attention.h"
#include "core/models/experts.h"
#include "core/models/ops.h"
#include "core/models/root_model.h"
#include "core/models/rope.h"

// Shapes  B batch, T tokens, D hidden, V vocabulary.
// Source  transformers 5.23 models/<family>/modeling_<family>.py.
namespace shardlens::models {
namespace {

using plan::Part;

RMSNorm decoder_norm(const plan::ModelConfig& config, Init init) {
  const bool offset = plan::decoder_family_of(config).offset_norms;
  return RMSNorm(config.hidden_size, config.norm_eps, init, offset ? 1.0 : 0.0);
}

[[noreturn]] void refuse_part() {
  throw RuntimeFault("a family that trains has a part that is not built");
}

class GatedMlpImpl : public torch::nn::Module {
 public:
  GatedMlpImpl(const plan::ModelConfig& config, Init init) {
    const plan::DecoderFamily& family = plan::decoder_family_of(config);
    const int64_t hidden = config.hidden_size;
    const int64_t inner = config.intermediate_size;
    const bool bias = plan::has_bias(family.mlp_bias, config.mlp_bias);
    for (const plan::Slot& slot : family.mlp) {
      const std::string name(slot.name);
      switch (slot.part) {
        case Part::kGate:
          gate_ = register_module(name, Linear(hidden, inner, bias, init));
          break;
        case Part::kUp:
          up_ = register_module(name, Linear(hidden, inner, bias, init));
          break;
        case Part::kDown:
          down_ = register_module(name, Linear(inner, hidden, bias, init));
          break;
        case Part::kActivation:
          activation_ = register_module(name, Activation(config.activation));
          break;
        default:
          refuse_part();
      }
    }
  }

  at::Tensor forward(const at::Tensor& x_BTD) {
    const at::Tensor gate = gate_(x_BTD);
    const at::Tensor up = up_(x_BTD);
    return down_(activation_->is_silu() ? silu_multiply(gate, up) : activation_(gate) * up);
  }

 private:
  Linear gate_{nullptr}, up_{nullptr}, down_{nullptr};
  Activation activation_{nullptr};
};
SHARDLENS_MODULE(GatedMlp);

class DecoderLayerImpl : public torch::nn::Module {
 public:
  DecoderLayerImpl(const plan::ModelConfig& config, int64_t index, Init init)
      : windowed_(plan::flag_of(config.windowed, index)) {
    for (const plan::Slot& slot : plan::decoder_family_of(config).layer) {
      const std::string name(slot.name);
      switch (slot.part) {
        case Part::kAttention:
          attention_ = register_module(name, DecoderAttention(config, init));
          break;
        case Part::kMlp:
          if (plan::flag_of(config.sparse, index)) {
            sparse_ = register_module(name, SparseMlp(config, init));
          } else {
            mlp_ = register_module(name, GatedMlp(config, init));
          }
          break;
        case Part::kInputNorm:
          input_norm_ = register_module(name, decoder_norm(config, init));
          break;
        case Part::kAttentionOutputNorm:
          attention_output_norm_ = register_module(name, decoder_norm(config, init));
          break;
        case Part::kMlpNorm:
          mlp_norm_ = register_module(name, decoder_norm(config, init));
          break;
        case Part::kMlpOutputNorm:
          mlp_output_norm_ = register_module(name, decoder_norm(config, init));
          break;
        default:
          refuse_part();
      }
    }
  }

  at::Tensor forward(const at::Tensor& x_BTD, const LayerPositions& positions) {
    const Positions& own = windowed_ ? positions.windowed : positions.full;
    const at::Tensor h_BTD =
        x_BTD + normed(attention_output_norm_, attention_(input_norm_(x_BTD), own));
    const at::Tensor m_BTD = mlp_norm_(h_BTD);
    return h_BTD + normed(mlp_output_norm_, sparse_.is_empty() ? mlp_(m_BTD) : sparse_(m_BTD));
  }

 private:
  static at::Tensor normed(RMSNorm& norm, const at::Tensor& x) {
    return norm.is_empty() ? x : norm(x);
  }

  DecoderAttention attention_{nullptr};
  GatedMlp mlp_{nullptr};      // empty: the layer is sparse
  SparseMlp sparse_{nullptr};  // empty: it is not
  RMSNorm input_norm_{nullptr}, attention_output_norm_{nullptr};
  RMSNorm mlp_norm_{nullptr}, mlp_output_norm_{nullptr};
  bool windowed_;
};
SHARDLENS_MODULE(DecoderLayer);

class DecoderModelImpl : public torch::nn::Module {
 public:
  DecoderModelImpl(const plan::ModelConfig& config, Init init) {
    const plan::DecoderFamily& family = plan::decoder_family_of(config);
    for (const plan::Slot& slot : family.model) {
      const std::string name(slot.name);
      switch (slot.part) {
        case Part::kEmbedding: {
          EmbeddingImpl::Options options;
          options.padding_index = config.padding_index;
          if (family.scales_embedding) {
            options.scale = std::sqrt(static_cast<double>(config.hidden_size));
          }
          embedding_ = register_module(
              name, Embedding(config.vocab_size, config.hidden_size, init, options));
          break;
        }
        case Part::kLayers:
          add_layers(register_module(name, torch::nn::ModuleList()), config, init);
          break;
        case Part::kFinalNorm:
          norm_ = register_module(name, decoder_norm(config, init));
          break;
        case Part::kRotary:
          rotary_ = register_module(name, RotaryEmbedding(config));
          break;
        default:
          refuse_part();
      }
    }
  }

  at::Tensor forward(const at::Tensor& tokens_BT) {
    at::Tensor hidden_BTD = embedding_(tokens_BT);
    const LayerPositions positions = rotary_(hidden_BTD);
    for (DecoderLayer& layer : layers_) {
      hidden_BTD = layer(hidden_BTD, positions);
    }
    return norm_(hidden_BTD);
  }

  [[nodiscard]] const at::Tensor& embedding() const { return embedding_->weight; }

 private:
  void add_layers(torch::nn::ModuleList list, const plan::ModelConfig& config, Init init) {
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      layers_.emplace_back(config, layer, init);
      list->push_back(layers_.back());
    }
  }

  Embedding embedding_{nullptr};
  std::vector<DecoderLayer> layers_;
  RMSNorm norm_{nullptr};
  RotaryEmbedding rotary_{nullptr};
};
SHARDLENS_MODULE(DecoderModel);

class DecoderForCausalLMImpl : public CausalLm {
 public:
  DecoderForCausalLMImpl(const plan::ModelConfig& config, Init init) : config_(config) {
    const plan::DecoderFamily& family = plan::decoder_family_of(config);
    SHARDLENS_CHECK(family.trained && family.containers.size() == 1,
                    "the family is not one that trains");
    model_ =
        register_module(std::string(family.containers.front().name), DecoderModel(config, init));
    lm_head_ = register_module("lm_head",
                               config.tie_word_embeddings
                                   ? Linear(model_->embedding())
                                   : Linear(config.hidden_size, config.vocab_size, false, init));
  }

  at::Tensor forward(const at::Tensor& tokens_BT) {
    require_positions(tokens_BT, config_);
    const at::Tensor logits_BTV = lm_head_(model_(tokens_BT));
    return config_.logit_cap > 0 ? soft_cap(logits_BTV, config_.logit_cap) : logits_BTV;
  }

 private:
  plan::ModelConfig config_;
  DecoderModel model_{nullptr};
  Linear lm_head_{nullptr};
};

}  // namespace

std::shared_ptr<CausalLm> make_decoder(const plan::ModelConfig& config, Init init) {
  return std::make_shared<RootModel<DecoderForCausalLMImpl>>(config, init);
}

}  // namespace shardlens::models
