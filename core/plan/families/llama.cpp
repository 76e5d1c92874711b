#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/plan/families/config_values.h"
#include "core/plan/families/model_family.h"
#include "core/plan/families/transformer_parts.h"
#include "core/plan/tree_builder.h"

namespace shardlens::plan {
namespace {

void read_llama3(const JsonNode& root, const JsonNode& rope, ModelConfig& config) {
  const auto needed = [&rope](std::string_view key) {
    const JsonNode node = rope.require(key);
    const double value = node.number();
    if (value <= 0) {
      node.fail(fmt::format("expected a number above 0, found {}", node.shown()));
    }
    return value;
  };
  config.rope_factor = needed("factor");
  config.rope_low_freq_factor = needed("low_freq_factor");
  config.rope_high_freq_factor = needed("high_freq_factor");
  // As in transformers, the value next to the rope settings takes precedence over one inside them.
  auto original = root.find("original_max_position_embeddings");
  if (!original) {
    original = rope.find("original_max_position_embeddings");
  }
  config.rope_original_max_positions =
      integer_or(original, config.max_positions, 1, kLargestPositions);
  if (config.rope_high_freq_factor <= config.rope_low_freq_factor) {
    rope.fail(fmt::format("high_freq_factor {} must be above low_freq_factor {}",
                          config.rope_high_freq_factor, config.rope_low_freq_factor));
  }
}

// [Note: Rope settings] Up to transformers 4 they are flat: "rope_theta" next to "rope_scaling"
// {"rope_type" (older: "type"), …}. Version 5 writes all of them inside "rope_parameters". As in
// transformers, rope_scaling takes precedence if both are given and not empty, and a rope_theta
// inside the object takes precedence over the flat one.
void read_rope(const JsonNode& root, ModelConfig& config) {
  static const std::vector<std::string> kTypes{"default", "linear", "llama3"};
  config.rope_theta = number_or(root, "rope_theta", config.rope_theta, 1.0, 1e15);
  if (const auto node = root.find("partial_rotary_factor");
      node && !node->is_null() && node->number() != 1.0) {
    node->fail(fmt::format("expected 1 (rotation of the whole head), found {}", node->shown()));
  }
  std::optional<JsonNode> rope;
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    auto node = root.find(key);
    if (node && !node->is_null()) {
      node->expect_object("an object with rope settings");
      if (!node->json().empty()) {
        rope = node;
        break;
      }
    }
  }
  if (!rope) {
    return;
  }
  if (const auto node = rope->find("partial_rotary_factor");
      node && !node->is_null() && node->number() != 1.0) {
    node->fail(fmt::format("expected 1 (rotation of the whole head), found {}", node->shown()));
  }
  config.rope_theta = number_or(*rope, "rope_theta", config.rope_theta, 1.0, 1e15);
  if (const auto type = find_any(*rope, {"rope_type", "type"})) {
    config.rope_type = kTypes[type->one_of(kTypes)];
  }
  if (config.rope_type == "linear") {
    const JsonNode factor = rope->require("factor");
    config.rope_factor = factor.number();
    if (config.rope_factor <= 0) {
      factor.fail(fmt::format("expected a number above 0, found {}", factor.shown()));
    }
  } else if (config.rope_type == "llama3") {
    read_llama3(root, *rope, config);
  }
}

void read_llama(const JsonNode& root, ModelConfig& config) {
  config.torch_type = "LlamaForCausalLM";
  config.vocab_size = integer_or(root.find("vocab_size"), 32000, 1, kLargestVocabulary);
  config.hidden_size = integer_or(root.find("hidden_size"), 4096, 1, kLargestWidth);
  config.intermediate_size =
      integer_or(root.find("intermediate_size"), 11008, 1, kLargestWidth * 8);
  config.layers = integer_or(root.find("num_hidden_layers"), 32, 1, kLargestLayers);
  config.heads = integer_or(root.find("num_attention_heads"), 32, 1, kLargestWidth);
  const auto kv_heads = root.find("num_key_value_heads");
  config.kv_heads = optional_integer(kv_heads, config.heads, 1, config.heads);
  config.max_positions =
      integer_or(root.find("max_position_embeddings"), 2048, 1, kLargestPositions);
  if (config.hidden_size % config.heads != 0) {
    find_any(root, {"num_attention_heads", "hidden_size"})
        .value_or(root)
        .fail(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                          config.hidden_size, config.heads));
  }
  if (config.heads % config.kv_heads != 0) {
    kv_heads->fail(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                               config.heads, config.kv_heads));
  }
  const auto head_dim = root.find("head_dim");
  config.head_dim = optional_integer(head_dim, config.hidden_size / config.heads, 1, kLargestWidth);
  if (config.head_dim % 2 != 0) {
    root.find("head_dim")
        .value_or(root)
        .fail(fmt::format("rotary embedding needs an even head_dim, found {}", config.head_dim));
  }
  config.norm_eps = number_or(root, "rms_norm_eps", 1e-6, 0.0, 1.0);
  config.activation = activation(root, "hidden_act", "silu");
  config.tie_word_embeddings = boolean_or(root, "tie_word_embeddings", false);
  config.attention_bias = boolean_or(root, "attention_bias", false);
  config.mlp_bias = boolean_or(root, "mlp_bias", false);
  config.dropout = number_or(root, "attention_dropout", 0.0, 0.0, 1.0);
  read_rope(root, config);
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

void llama_attention(WorkloadBuilder& build, const ModelConfig& config, const std::string& name) {
  const int64_t q = config.heads * config.head_dim;
  const int64_t kv = config.kv_heads * config.head_dim;
  const bool bias = config.attention_bias;
  build.enter(name);
  // The three projections share their input, which is saved once. Its gradient is the sum of three:
  // backward runs v first, then k and q each add theirs.
  build.linear(name + ".q_proj",
               {.in = config.hidden_size, .out = q, .bias = bias, .sums_input_grad = true});
  build.rotary(q);
  build.linear(name + ".k_proj", {.in = config.hidden_size,
                                  .out = kv,
                                  .bias = bias,
                                  .keeps_input = false,
                                  .sums_input_grad = true});
  build.rotary(kv);
  build.linear(name + ".v_proj",
               {.in = config.hidden_size, .out = kv, .bias = bias, .keeps_input = false});
  build.attention(
      {.heads = config.heads, .kv_heads = config.kv_heads, .head_dim = config.head_dim});
  build.linear(name + ".o_proj",
               {.in = q, .out = config.hidden_size, .bias = bias, .keeps_input = false});
  build.leave();
}

void llama_mlp(WorkloadBuilder& build, const ModelConfig& config, const std::string& name) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const bool bias = config.mlp_bias;
  build.enter(name);
  build.linear(name + ".gate_proj",
               {.in = hidden, .out = inner, .bias = bias, .sums_input_grad = true});
  build.linear(name + ".up_proj", {.in = hidden, .out = inner, .bias = bias, .keeps_input = false});
  if (config.activation == "silu") {
    build.silu_multiply(inner);
  } else {
    build.enter(name + ".act_fn");
    build.activation(config.activation, inner);
    build.leave();
    build.elementwise("aten::mul", "aten::mul",
                      {.read = 2 * inner,
                       .written = inner,
                       .saved = config.activation == "relu" ? inner : 2 * inner,
                       .flops = inner,
                       .backward_read = 4 * inner,
                       .backward_written = 2 * inner,
                       .backward_flops = 2 * inner});
  }
  build.linear(name + ".down_proj", {.in = inner, .out = hidden, .bias = bias});
  build.leave();
}

void llama_forward(WorkloadBuilder& build, const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  build.enter("model");
  build.enter("model.embed_tokens");
  build.embedding(hidden);
  build.leave();
  build.enter("model.rotary_emb");
  build.leave();
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}", i);
    build.enter(layer);
    rms_norm(build, layer + ".input_layernorm", hidden);
    llama_attention(build, config, layer + ".self_attn");
    build.add(hidden);
    rms_norm(build, layer + ".post_attention_layernorm", hidden);
    llama_mlp(build, config, layer + ".mlp");
    build.add(hidden);
    build.leave();
  }
  rms_norm(build, "model.norm", hidden, false);
  build.leave();
  head(build, config);
}

}  // namespace

extern const ModelFamily kLlamaFamily;
const ModelFamily kLlamaFamily{"llama", read_llama, llama_tree, llama_forward};

}  // namespace shardlens::plan
