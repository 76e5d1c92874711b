#include "core/plan/module_tree.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::plan {
namespace {

using Family = ModelConfig::Family;

// Builds a tree in the order in which a torch module registers its children and parameters.
class TreeBuilder {
 public:
  explicit TreeBuilder(const std::string& root_type) {
    tree_.modules.push_back({"", root_type, 0, {}, {}});
  }

  uint32_t module(uint32_t parent, const std::string& name, const std::string& type) {
    const auto index = static_cast<uint32_t>(tree_.modules.size());
    tree_.modules.push_back({qualified(parent, name), type, parent, {}, {}});
    tree_.modules[parent].children.push_back(index);
    return index;
  }

  uint32_t parameter(uint32_t module, const std::string& name, std::vector<int64_t> shape) {
    const auto index = static_cast<uint32_t>(tree_.parameters.size());
    const int64_t numel =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    tree_.parameters.push_back({qualified(module, name), std::move(shape), numel, module, {}});
    tree_.modules[module].parameters.push_back(index);
    return index;
  }

  // `module`'s parameter `name` is the tensor that another module registered first.
  void tie(uint32_t module, const std::string& name, uint32_t parameter) {
    tree_.modules[module].parameters.push_back(parameter);
    tree_.parameters[parameter].aliases.push_back(qualified(module, name));
  }

  uint32_t linear(uint32_t parent, const std::string& name, int64_t in, int64_t out, bool bias) {
    const uint32_t index = module(parent, name, "Linear");
    parameter(index, "weight", {out, in});
    if (bias) {
      parameter(index, "bias", {out});
    }
    return index;
  }

  uint32_t conv1d(uint32_t parent, const std::string& name, int64_t in, int64_t out) {
    const uint32_t index = module(parent, name, "Conv1D");
    parameter(index, "weight", {in, out});
    parameter(index, "bias", {out});
    return index;
  }

  void layer_norm(uint32_t parent, const std::string& name, int64_t hidden) {
    const uint32_t index = module(parent, name, "LayerNorm");
    parameter(index, "weight", {hidden});
    parameter(index, "bias", {hidden});
  }

  void rms_norm(uint32_t parent, const std::string& name, int64_t hidden) {
    parameter(module(parent, name, "LlamaRMSNorm"), "weight", {hidden});
  }

  // Returns its weight.
  uint32_t embedding(uint32_t parent, const std::string& name, int64_t rows, int64_t hidden) {
    return parameter(module(parent, name, "Embedding"), "weight", {rows, hidden});
  }

  // The output projection without bias, sharing `embedding` if tied.
  void head(const ModelConfig& config, uint32_t embedding) {
    if (config.tie_word_embeddings) {
      tie(module(0, "lm_head", "Linear"), "weight", embedding);
    } else {
      linear(0, "lm_head", config.hidden_size, config.vocab_size, false);
    }
  }

  void block(uint32_t module) { tree_.blocks.push_back(module); }
  ModuleTree take() { return std::move(tree_); }

 private:
  [[nodiscard]] std::string qualified(uint32_t module, const std::string& name) const {
    const std::string& prefix = tree_.modules[module].fqn;
    return prefix.empty() ? name : prefix + "." + name;
  }

  ModuleTree tree_;
};

// Class that transformers' ACT2FN makes for a name.
std::string activation_type(const std::string& name) {
  if (name == "gelu_new") {
    return "NewGELUActivation";
  }
  if (name == "gelu") {
    return "GELUActivation";
  }
  return name == "relu" ? "ReLU" : "SiLUActivation";
}

// Source: transformers 5.23 models/llama/modeling_llama.py; order of registration in each __init__.
ModuleTree llama_tree(const ModelConfig& config) {
  TreeBuilder build(config.torch_type);
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = config.heads * config.head_dim;
  const int64_t kv_size = config.kv_heads * config.head_dim;
  const uint32_t model = build.module(0, "model", "LlamaModel");
  const uint32_t embedding = build.embedding(model, "embed_tokens", config.vocab_size, hidden);
  const uint32_t layers = build.module(model, "layers", "ModuleList");
  for (int64_t i = 0; i < config.layers; ++i) {
    const uint32_t layer = build.module(layers, std::to_string(i), "LlamaDecoderLayer");
    build.block(layer);
    const uint32_t attention = build.module(layer, "self_attn", "LlamaAttention");
    build.linear(attention, "q_proj", hidden, q_size, config.attention_bias);
    build.linear(attention, "k_proj", hidden, kv_size, config.attention_bias);
    build.linear(attention, "v_proj", hidden, kv_size, config.attention_bias);
    build.linear(attention, "o_proj", q_size, hidden, config.attention_bias);
    const uint32_t mlp = build.module(layer, "mlp", "LlamaMLP");
    build.linear(mlp, "gate_proj", hidden, config.intermediate_size, config.mlp_bias);
    build.linear(mlp, "up_proj", hidden, config.intermediate_size, config.mlp_bias);
    build.linear(mlp, "down_proj", config.intermediate_size, hidden, config.mlp_bias);
    build.module(mlp, "act_fn", activation_type(config.activation));
    build.rms_norm(layer, "input_layernorm", hidden);
    build.rms_norm(layer, "post_attention_layernorm", hidden);
  }
  build.rms_norm(model, "norm", hidden);
  build.module(model, "rotary_emb", "LlamaRotaryEmbedding");
  build.head(config, embedding);
  return build.take();
}

// Source: transformers 5.23 models/gpt2/modeling_gpt2.py. Conv1D keeps its weight as [in, out].
ModuleTree gpt2_tree(const ModelConfig& config) {
  TreeBuilder build(config.torch_type);
  const int64_t hidden = config.hidden_size;
  const uint32_t model = build.module(0, "transformer", "GPT2Model");
  const uint32_t embedding = build.embedding(model, "wte", config.vocab_size, hidden);
  build.embedding(model, "wpe", config.max_positions, hidden);
  build.module(model, "drop", "Dropout");
  const uint32_t layers = build.module(model, "h", "ModuleList");
  for (int64_t i = 0; i < config.layers; ++i) {
    const uint32_t layer = build.module(layers, std::to_string(i), "GPT2Block");
    build.block(layer);
    build.layer_norm(layer, "ln_1", hidden);
    const uint32_t attention = build.module(layer, "attn", "GPT2Attention");
    build.conv1d(attention, "c_attn", hidden, 3 * hidden);
    build.conv1d(attention, "c_proj", hidden, hidden);
    build.module(attention, "attn_dropout", "Dropout");
    build.module(attention, "resid_dropout", "Dropout");
    build.layer_norm(layer, "ln_2", hidden);
    const uint32_t mlp = build.module(layer, "mlp", "GPT2MLP");
    build.conv1d(mlp, "c_fc", hidden, config.intermediate_size);
    build.conv1d(mlp, "c_proj", config.intermediate_size, hidden);
    build.module(mlp, "act", activation_type(config.activation));
    build.module(mlp, "dropout", "Dropout");
  }
  build.layer_norm(model, "ln_f", hidden);
  build.head(config, embedding);
  return build.take();
}

ModuleTree mlp_tree(const ModelConfig& config) {
  TreeBuilder build(config.torch_type);
  const uint32_t embedding =
      build.embedding(0, "embed_tokens", config.vocab_size, config.hidden_size);
  const uint32_t layers = build.module(0, "layers", "ModuleList");
  for (int64_t i = 0; i < config.layers; ++i) {
    const uint32_t layer = build.module(layers, std::to_string(i), "MlpBlock");
    build.block(layer);
    build.linear(layer, "fc1", config.hidden_size, config.intermediate_size, true);
    build.linear(layer, "fc2", config.intermediate_size, config.hidden_size, true);
  }
  build.head(config, embedding);
  return build.take();
}

}  // namespace

const Module* ModuleTree::find(std::string_view fqn) const {
  const auto found = std::find_if(modules.begin(), modules.end(),
                                  [&](const Module& module) { return module.fqn == fqn; });
  return found == modules.end() ? nullptr : &*found;
}

std::vector<uint32_t> ModuleTree::subtree_parameters(uint32_t module) const {
  SHARDLENS_CHECK(module < modules.size(), "module index outside the tree");
  std::vector<uint32_t> out;
  std::set<uint32_t> seen;
  std::vector<uint32_t> stack{module};
  while (!stack.empty()) {
    const Module& current = modules[stack.back()];
    stack.pop_back();
    for (const uint32_t parameter : current.parameters) {
      if (seen.insert(parameter).second) {
        out.push_back(parameter);
      }
    }
    stack.insert(stack.end(), current.children.rbegin(), current.children.rend());
  }
  return out;
}

ModuleTree module_tree(const ModelConfig& config) {
  switch (config.family) {
    case Family::kGpt2:
      return gpt2_tree(config);
    case Family::kMlp:
      return mlp_tree(config);
    case Family::kLlama:
      break;
  }
  return llama_tree(config);
}

}  // namespace shardlens::plan
