#include <algorithm>
#include <string>
#include <utility>

#include "core/model/families/decoder_family.h"
#include "core/model/families/heads.h"
#include "core/model/families/transformer_parts.h"
#include "core/tree/tree_builder.h"

namespace shardlens::plan {
namespace {

// Adds the modules of a family's slots, in the order of registration in each __init__.
class DecoderTree {
 public:
  explicit DecoderTree(const ModelConfig& config)
      : family_(decoder_family_of(config)), config_(config), build_(config.torch_type) {}

  ModuleTree take() {
    uint32_t model = 0;
    const Slot& base = family_.containers.front();
    if (const std::string name = base_name(config_, base.name); !name.empty()) {
      model = build_.module(model, name, type_of(family_, base.type));
    }
    for (const Slot& slot : family_.containers.subspan(1)) {
      model = module(model, slot);
    }
    for (const Slot& slot : family_.model) {
      add_to_model(model, slot);
    }
    add_head(build_, config_, config_.embedding_size, embedding_);
    ModuleTree tree = build_.take();
    for (Parameter& each : tree.parameters) {
      const std::string& owner = tree.modules[each.module].fqn;
      each.requires_grad =
          config_.lora.rank == 0 || owner.ends_with(".lora_A") || owner.ends_with(".lora_B");
    }
    return tree;
  }

 private:
  uint32_t module(uint32_t parent, const Slot& slot) {
    return build_.module(parent, std::string(slot.name), type_of(family_, slot.type));
  }
  void linear(uint32_t parent, const Slot& slot, int64_t in, int64_t out, bool bias) {
    const std::string name(slot.name);
    const uint32_t layer = build_.linear(parent, name, in, out, bias);
    const ModelConfig::Lora& lora = config_.lora;
    if (lora.rank > 0 && std::ranges::find(lora.targets, name) != lora.targets.end()) {
      build_.linear(layer, "lora_A", in, lora.rank, false);
      build_.linear(layer, "lora_B", lora.rank, out, false);
    }
  }
  void norm(uint32_t parent, const Slot& slot, const std::vector<int64_t>& shape) {
    const uint32_t index = module(parent, slot);
    if (config_.affine_norms) {
      build_.parameter(index, "weight", shape);
    }
    if (config_.affine_norms && family_.norm_bias) {
      build_.parameter(index, "bias", shape);
    }
  }
  void norm(uint32_t parent, const Slot& slot, int64_t features) {
    norm(parent, slot, std::vector<int64_t>{features});
  }
  // Adds the norm of queries or keys with `heads` heads.
  void head_norm(uint32_t attention, const Slot& slot, int64_t heads) {
    if (family_.norms_by_head) {
      return norm(attention, slot, std::vector<int64_t>{heads, config_.head_dim});
    }
    norm(attention, slot, family_.whole_norms ? heads * config_.head_dim : config_.head_dim);
  }

  void add_to_model(uint32_t model, const Slot& slot) {
    const int64_t hidden = config_.hidden_size;
    if (!has_part(config_, slot.part)) {
      return;
    }
    switch (slot.part) {
      case Part::kEmbedding:
        embedding_ = build_.parameter(module(model, slot), "weight",
                                      {config_.vocab_size, config_.embedding_size});
        return;
      case Part::kPositions:  // two rows are reserved
        build_.parameter(module(model, slot), "weight", {config_.max_positions + 2, hidden});
        return;
      case Part::kProjectIn:
        return linear(model, slot, config_.embedding_size, hidden, false);
      case Part::kProjectOut:
        return linear(model, slot, hidden, config_.embedding_size, false);
      case Part::kFinalNorm:
        return norm(model, slot, hidden);
      case Part::kLayers:
        return add_layers(model, slot);
      default:
        module(model, slot);
    }
  }

  void add_layers(uint32_t model, const Slot& slot) {
    const uint32_t list = build_.module(model, std::string(slot.name), "ModuleList");
    for (int64_t i = 0; i < config_.layers; ++i) {
      const uint32_t layer = build_.module(list, std::to_string(i), type_of(family_, slot.type));
      build_.block(layer);
      for (const Slot& part : family_.layer) {
        add_to_layer(layer, part, i);
      }
    }
  }

  void add_to_layer(uint32_t layer, const Slot& slot, int64_t index) {
    switch (slot.part) {
      case Part::kAttention:
        return add_attention(module(layer, slot));
      case Part::kMlp:
        return flag_of(config_.sparse, index) ? add_sparse(layer, slot)
                                              : add_mlp(module(layer, slot));
      case Part::kInputNorm:
      case Part::kAttentionOutputNorm:
      case Part::kMlpNorm:
      case Part::kMlpOutputNorm:
        return norm(layer, slot, config_.hidden_size);
      case Part::kDropout:
        module(layer, slot);
        return;
      default:
        add_to_mlp(layer, slot, config_.intermediate_size);
    }
  }

  void add_attention(uint32_t attention) {
    if (family_.sinks) {
      build_.parameter(attention, "sinks", {config_.heads});
    }
    for (const Slot& slot : family_.attention) {
      if (has_part(config_, slot.part)) {
        add_to_attention(attention, slot);
      }
    }
  }

  void add_to_attention(uint32_t attention, const Slot& slot) {
    const int64_t hidden = config_.hidden_size;
    const int64_t queries = config_.heads * config_.head_dim;
    const int64_t keys = config_.kv_heads * config_.head_dim;
    const ModelConfig::Latent& latent = config_.latent;
    const bool bias = has_bias(family_.query_bias, config_.attention_bias);
    switch (slot.part) {
      case Part::kQuery:
        return linear(attention, slot, hidden, queries, bias && latent.key_value_rank == 0);
      case Part::kKey:
      case Part::kValue:
        return linear(attention, slot, hidden, keys, bias);
      case Part::kQueryKeyValue:
        return linear(attention, slot, hidden, queries + 2 * keys, bias);
      case Part::kOutput:
        return linear(attention, slot, config_.heads * value_dim(), hidden,
                      has_bias(family_.output_bias, config_.attention_bias));
      case Part::kQueryNorm:
        return head_norm(attention, slot, config_.heads);
      case Part::kKeyNorm:
        return head_norm(attention, slot, config_.kv_heads);
      case Part::kQueryDown:
        return linear(attention, slot, hidden, latent.query_rank, bias);
      case Part::kQueryDownNorm:
        return norm(attention, slot, latent.query_rank);
      case Part::kQueryUp:
        return linear(attention, slot, latent.query_rank, queries, false);
      case Part::kKeyValueDown:
        return linear(attention, slot, hidden, latent.key_value_rank + latent.rope_dim, bias);
      case Part::kKeyValueDownNorm:
        return norm(attention, slot, latent.key_value_rank);
      case Part::kKeyValueUp:
        return linear(attention, slot, latent.key_value_rank,
                      config_.heads * (latent.plain_dim + latent.value_dim), false);
      default:
        module(attention, slot);
    }
  }

  [[nodiscard]] int64_t value_dim() const {
    return config_.latent.value_dim > 0 ? config_.latent.value_dim : config_.head_dim;
  }

  void add_mlp(uint32_t mlp) {
    for (const Slot& slot : family_.mlp) {
      add_to_mlp(mlp, slot, config_.intermediate_size);
    }
  }

  void add_to_mlp(uint32_t mlp, const Slot& slot, int64_t inner) {
    const bool bias = has_bias(family_.mlp_bias, config_.mlp_bias);
    const int64_t hidden = config_.hidden_size;
    switch (slot.part) {
      case Part::kGate:
      case Part::kUp:
        return linear(mlp, slot, hidden, inner, bias);
      case Part::kGateUp:
        return linear(mlp, slot, hidden, 2 * inner, bias);
      case Part::kDown:
        return linear(mlp, slot, inner, hidden, bias);
      case Part::kActivation:
        build_.module(
            mlp, std::string(slot.name),
            slot.type.empty() ? activation_type(config_.activation) : std::string(slot.type));
        return;
      default:
        module(mlp, slot);
    }
  }

  void add_sparse(uint32_t layer, const Slot& mlp_slot) {
    const uint32_t mlp =
        build_.module(layer, std::string(mlp_slot.name), type_of(family_, family_.sparse_type));
    const int64_t hidden = config_.hidden_size;
    const ModelConfig::Experts& experts = config_.experts;
    for (const Slot& slot : family_.sparse) {
      const uint32_t index = module(mlp, slot);
      if (slot.part == Part::kRouter) {
        build_.parameter(index, "weight", {experts.count, hidden});
        if (family_.expert_bias) {
          build_.parameter(index, "bias", {experts.count});
        }
      } else if (slot.part == Part::kExperts) {
        add_experts(index);
      } else {
        for (const Slot& part : family_.mlp) {
          add_to_mlp(index, part, experts.intermediate_size * experts.shared);
        }
      }
    }
  }

  void add_experts(uint32_t module_of_experts) {
    const ModelConfig::Experts& experts = config_.experts;
    const auto add = [&](const std::string& name, int64_t in, int64_t out) {
      build_.parameter(module_of_experts, name,
                       family_.transposed_experts ? std::vector<int64_t>{experts.count, in, out}
                                                  : std::vector<int64_t>{experts.count, out, in});
      if (family_.expert_bias) {
        build_.parameter(module_of_experts, name + "_bias", {experts.count, out});
      }
    };
    add("gate_up_proj", config_.hidden_size, 2 * experts.intermediate_size);
    add("down_proj", experts.intermediate_size, config_.hidden_size);
    if (!family_.expert_bias) {  // otherwise a clamped activation without a module
      build_.module(module_of_experts, "act_fn", activation_type(config_.activation));
    }
  }

  const DecoderFamily& family_;
  const ModelConfig& config_;
  TreeBuilder build_;
  uint32_t embedding_ = 0;
};

}  // namespace

ModuleTree decoder_modules(const ModelConfig& config) {
  return DecoderTree(config).take();
}

}  // namespace shardlens::plan
