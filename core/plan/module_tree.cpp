#include "core/plan/module_tree.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/tree_builder.h"

namespace shardlens::plan {
namespace {

using Family = ModelConfig::Family;

// The class that transformers' ACT2FN maps a name to.
std::string activation_type(const std::string& name) {
  if (name == "gelu_new") {
    return "NewGELUActivation";
  }
  if (name == "gelu") {
    return "GELUActivation";
  }
  return name == "relu" ? "ReLU" : "SiLUActivation";
}

// In the order of registration in each __init__.
// Source: transformers 5.23 models/llama/modeling_llama.py.
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

// Source: transformers 5.23 models/gpt2/modeling_gpt2.py. Conv1D stores its weight as [in, out].
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
