#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/json_reader.h"
#include "core/plan/module_tree.h"

namespace shardlens::plan {
namespace {

using Family = ModelConfig::Family;
using Names = std::vector<std::string>;

// Bounds far above any real model. They prevent overflow of int64 sizes, and a damaged file from
// exhausting memory.
constexpr int64_t kLargestWidth = int64_t{1} << 20;
constexpr int64_t kLargestVocabulary = int64_t{1} << 27;
constexpr int64_t kLargestLayers = 4096;
constexpr int64_t kLargestPositions = int64_t{1} << 31;

// The first of `keys` that the file has (with transformers' attribute_map, gpt2 may use either
// name).
std::optional<JsonNode> find_any(const JsonNode& root,
                                 std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (auto node = root.find(key)) {
      return node;
    }
  }
  return std::nullopt;
}

int64_t integer_or(const std::optional<JsonNode>& node,
                   int64_t fallback,
                   int64_t low,
                   int64_t high) {
  return node ? node->integer(low, high) : fallback;
}

// For keys that transformers declares optional: null means absent.
int64_t optional_integer(const std::optional<JsonNode>& node,
                         int64_t fallback,
                         int64_t low,
                         int64_t high) {
  return node && !node->is_null() ? node->integer(low, high) : fallback;
}

bool boolean_or(const JsonNode& root, std::string_view key, bool fallback) {
  const auto node = root.find(key);
  return node && !node->is_null() ? node->boolean() : fallback;
}

double number_or(
    const JsonNode& root, std::string_view key, double fallback, double low, double high) {
  const auto node = root.find(key);
  if (!node || node->is_null()) {
    return fallback;
  }
  const double value = node->number();
  if (value < low || value > high) {
    node->fail(fmt::format("expected a number from {} to {}, found {}", low, high, node->shown()));
  }
  return value;
}

std::string activation(const JsonNode& root, std::string_view key, const std::string& fallback) {
  static const Names kActivations{"silu", "gelu", "gelu_new", "relu"};
  const auto node = root.find(key);
  return node ? kActivations[node->one_of(kActivations)] : fallback;
}

DType weights_dtype(const JsonNode& root) {
  static const Names kDtypes{"float32", "bfloat16", "float16"};
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    const auto node = root.find(key);
    if (node && !node->is_null()) {
      return *parse_dtype(kDtypes[node->one_of(kDtypes)]);
    }
  }
  return DType::kF32;
}

// A suggestion for an unsupported model type: the supported family that is most similar to it.
std::string nearest_family(const std::string& seen, const Names& supported) {
  static const std::array<std::pair<std::string_view, std::string_view>, 14> kRelatives{{
      {"mistral", "llama"},
      {"ministral", "llama"},
      {"mixtral", "llama"},
      {"qwen", "llama"},
      {"gemma", "llama"},
      {"phi", "llama"},
      {"olmo", "llama"},
      {"granite", "llama"},
      {"smollm", "llama"},
      {"deepseek", "llama"},
      {"opt", "gpt2"},
      {"bloom", "gpt2"},
      {"gpt", "gpt2"},
      {"codegen", "gpt2"},
  }};
  for (const auto& [prefix, family] : kRelatives) {
    if (seen.starts_with(prefix)) {
      return fmt::format("; the nearest is '{}', but its modules are different", family);
    }
  }
  return suggestion(seen, supported);
}

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
  static const Names kTypes{"default", "linear", "llama3"};
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

void read_gpt2(const JsonNode& root, ModelConfig& config) {
  config.torch_type = "GPT2LMHeadModel";
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

void read_mlp(const JsonNode& root, ModelConfig& config) {
  config.torch_type = "MlpForCausalLM";
  config.vocab_size = integer_or(root.find("vocab_size"), 256, 1, kLargestVocabulary);
  config.hidden_size = integer_or(root.find("hidden_size"), 64, 1, kLargestWidth);
  config.layers = integer_or(root.find("num_hidden_layers"), 4, 1, kLargestLayers);
  config.intermediate_size = optional_integer(root.find("intermediate_size"),
                                              4 * config.hidden_size, 1, kLargestWidth * 8);
  config.max_positions =
      integer_or(root.find("max_position_embeddings"), kLargestPositions, 1, kLargestPositions);
  config.tie_word_embeddings = boolean_or(root, "tie_word_embeddings", false);
  config.activation = "relu";
}

}  // namespace

ModelConfig load_model_config(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(path, ignored)) {
    file = path / "config.json";
    if (!std::filesystem::exists(file, ignored)) {
      throw InputError(path.string(),
                       "the directory has no config.json; expected a Hugging Face model directory");
    }
  } else if (!std::filesystem::exists(path, ignored)) {
    throw InputError(path.string(),
                     "does not exist; expected a directory with config.json, or a config.json");
  }
  return parse_model_config(read_text_file(file), file.string());
}

ModelConfig parse_model_config(std::string_view json, const std::string& source) {
  static const Names kFamilies{"llama", "gpt2", "mlp"};
  ModelConfig config;
  config.source = source;
  const nlohmann::json document = parse_json(json, source);
  const JsonNode root(document, source);
  root.expect_object("an object with a model's settings");
  const JsonNode type = root.require("model_type");
  const auto family = std::find(kFamilies.begin(), kFamilies.end(), type.string());
  if (family == kFamilies.end()) {
    type.fail(fmt::format("model type {} is not supported; expected one of {}{}", type.shown(),
                          quoted_list(kFamilies), nearest_family(type.string(), kFamilies)));
  }
  config.family = static_cast<Family>(family - kFamilies.begin());
  if (const auto quantized = root.find("quantization_config"); quantized && !quantized->is_null()) {
    quantized->fail(
        "quantised weights are not supported; expected a checkpoint in fp32, bf16 or fp16");
  }
  config.dtype = weights_dtype(root);
  config.initializer_range = number_or(root, "initializer_range", 0.02, 0.0, 1.0);
  switch (config.family) {
    case Family::kLlama:
      read_llama(root, config);
      break;
    case Family::kGpt2:
      read_gpt2(root, config);
      break;
    case Family::kMlp:
      read_mlp(root, config);
      break;
  }
  return config;
}

}  // namespace shardlens::plan
