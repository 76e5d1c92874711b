#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/model/families/config_values.h"
#include "core/model/families/heads.h"
#include "core/model/families/model_family.h"
#include "core/model/families/transformer_parts.h"
#include "core/tree/tree_builder.h"

namespace shardlens::plan {
namespace {

void read_gpt2(const JsonNode& root, ModelConfig& config) {
  config.torch_type = "GPT2LMHeadModel";
  read_head(root, config);
  config.vocab_size = integer_or(root.find("vocab_size"), 50257, 1, kLargestVocabulary);
  config.hidden_size = integer_or(find_any(root, {"n_embd", "hidden_size"}), 768, 1, kLargestWidth);
  config.layers =
      integer_or(find_any(root, {"n_layer", "num_hidden_layers"}), 12, 1, kLargestLayers);
  const auto heads = find_any(root, {"n_head", "num_attention_heads"});
  config.heads = integer_or(heads, 12, 1, kLargestWidth);
  config.kv_heads = config.heads;
  config.max_positions = integer_or(find_any(root, {"n_positions", "max_position_embeddings"}),
                                    1024, 1, kLargestVocabulary);
  config.intermediate_size =
      optional_integer(root.find("n_inner"), 4 * config.hidden_size, 1, kLargestWidth * 8);
  if (config.hidden_size % config.heads != 0) {
    heads.value_or(root).fail(fmt::format("hidden size {} is not a multiple of {} attention heads",
                                          config.hidden_size, config.heads));
  }
  config.head_dim = config.hidden_size / config.heads;
  config.norm_eps = number_or(root, "layer_norm_epsilon", 1e-5, 0.0, 1.0);
  config.activation = activation(root, "activation_function", "gelu_new");
  config.tie_word_embeddings = boolean_or(root, "tie_word_embeddings", true);
  config.scale_attention_weights = boolean_or(root, "scale_attn_weights", true);
  config.scale_attention_by_inverse_layer =
      boolean_or(root, "scale_attn_by_inverse_layer_idx", false);
  for (const std::string_view key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    config.dropout = std::max(config.dropout, number_or(root, key, 0.1, 0.0, 1.0));
  }
  if (const auto cross = root.find("add_cross_attention");
      cross && !cross->is_null() && cross->boolean()) {
    cross->fail("expected false: a causal language model has no cross attention");
  }
}

// Source: transformers 5.23 models/gpt2/modeling_gpt2.py. Conv1D stores its weight as [in, out].
ModuleTree gpt2_tree(const ModelConfig& config) {
  TreeBuilder build(config.torch_type);
  const int64_t hidden = config.hidden_size;
  const std::string base = base_name(config, "transformer");
  const uint32_t model = base.empty() ? 0 : build.module(0, base, "GPT2Model");
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
  add_head(build, config, hidden, embedding);
  return build.take();
}

void gpt2_block(WorkloadBuilder& build, const ModelConfig& config, const std::string& layer) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const auto dropout = [&build](const std::string& module) {
    build.enter(module);  // an identity: training with dropout is not supported
    build.leave();
  };
  build.enter(layer);
  layer_norm(build, layer + ".ln_1", hidden);
  build.enter(layer + ".attn");
  build.linear(layer + ".attn.c_attn",
               {.in = hidden, .out = 3 * hidden, .bias = true, .transposed = false});
  // Queries, keys and values are views of one tensor; backward concatenates their gradients.
  build.elementwise("aten::split", "aten::cat",
                    {.backward_read = 3 * hidden, .backward_written = 3 * hidden});
  build.attention({.heads = config.heads, .kv_heads = config.heads, .head_dim = config.head_dim});
  build.linear(
      layer + ".attn.c_proj",
      {.in = hidden, .out = hidden, .bias = true, .transposed = false, .keeps_input = false});
  dropout(layer + ".attn.resid_dropout");
  build.leave();
  build.add(hidden);
  layer_norm(build, layer + ".ln_2", hidden);
  build.enter(layer + ".mlp");
  build.linear(layer + ".mlp.c_fc",
               {.in = hidden, .out = inner, .bias = true, .transposed = false});
  build.enter(layer + ".mlp.act");
  build.activation(config.activation, inner);
  build.leave();
  build.linear(layer + ".mlp.c_proj", {.in = inner,
                                       .out = hidden,
                                       .bias = true,
                                       .transposed = false,
                                       .keeps_input = config.activation != "relu"});
  dropout(layer + ".mlp.dropout");
  build.leave();
  build.add(hidden);
  build.leave();
}

void gpt2_forward(WorkloadBuilder& build, const ModelConfig& config) {
  const std::string base = base_name(config, "transformer");
  const std::string prefix = base.empty() ? "" : base + ".";
  if (!base.empty()) {
    build.enter(base);
  }
  for (const char* table : {"wte", "wpe"}) {
    build.enter(prefix + table);
    build.embedding(config.hidden_size);
    build.leave();
  }
  build.add(config.hidden_size);
  build.enter(prefix + "drop");
  build.leave();
  for (int64_t i = 0; i < config.layers; ++i) {
    gpt2_block(build, config, fmt::format("{}h.{}", prefix, i));
  }
  layer_norm(build, prefix + "ln_f", config.hidden_size, false);
  if (!base.empty()) {
    build.leave();
  }
  head_forward(build, config, config.hidden_size);
}

}  // namespace

extern const ModelFamily kGpt2Family;
const ModelFamily kGpt2Family{"gpt2", read_gpt2, gpt2_tree, gpt2_forward};

}  // namespace shardlens::plan
