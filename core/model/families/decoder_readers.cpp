#include "core/model/families/decoder_readers.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/model/families/config_values.h"

namespace shardlens::plan {
namespace {

// Whether an entry of "layer_types" names attention with a window.
bool is_windowed(const JsonNode& kind) {
  static const std::vector<std::string> kKinds{"full_attention", "sliding_attention"};
  return kind.one_of(kKinds) == 1;
}

int64_t window_of(const JsonNode& root, int64_t fallback) {
  const auto node = root.find("sliding_window");
  return node && node->is_null() ? 0 : integer_or(node, fallback, 1, kLargestPositions);
}

void read_layer_types(const JsonNode& root, ModelConfig& config) {
  const auto types = root.find("layer_types");
  if (!types || types->is_null()) {
    return;
  }
  const std::vector<JsonNode> kinds = types->items("a kind of attention for each layer");
  if (static_cast<int64_t>(kinds.size()) != config.layers) {
    types->fail(fmt::format("expected {} kinds, one for each layer, found {}", config.layers,
                            kinds.size()));
  }
  config.windowed.clear();
  for (const JsonNode& kind : kinds) {
    config.windowed.push_back(is_windowed(kind));
  }
}

// Every layer whose 1-based number is not a multiple of `pattern`.
void window_all_but_each(ModelConfig& config, int64_t pattern) {
  config.windowed.clear();
  for (int64_t i = 1; i <= config.layers; ++i) {
    config.windowed.push_back(i % pattern != 0);
  }
}

void window_all(ModelConfig& config) {
  config.windowed.assign(config.sliding_window > 0 ? static_cast<size_t>(config.layers) : 0, true);
}

// null: no cap.
double cap_of(const JsonNode& root, std::string_view key, double fallback) {
  const auto node = root.find(key);
  return node && node->is_null() ? 0.0 : number_or(root, key, fallback, 1e-6, 1e9);
}

int64_t expert_count(const JsonNode& root,
                     std::initializer_list<std::string_view> keys,
                     int64_t fallback) {
  return integer_or(find_any(root, keys), fallback, 1, kLargestExperts);
}

void read_experts(const JsonNode& root,
                  std::initializer_list<std::string_view> count,
                  int64_t experts,
                  int64_t per_token,
                  int64_t intermediate,
                  ModelConfig& config) {
  config.experts.count = expert_count(root, count, experts);
  config.experts.per_token = integer_or(root.find("num_experts_per_tok"), per_token, 1,
                                        std::max(per_token, config.experts.count));
  if (config.experts.per_token > config.experts.count) {
    root.find("num_experts_per_tok")
        .value_or(root)
        .fail(fmt::format("{} experts per token are more than the {} experts",
                          config.experts.per_token, config.experts.count));
  }
  config.experts.intermediate_size = intermediate;
  config.experts.auxiliary_loss = boolean_or(root, "output_router_logits", false);
  config.sparse.assign(static_cast<size_t>(config.layers), true);
}

}  // namespace

void read_mistral(const JsonNode& root, ModelConfig& config) {
  config.sliding_window = window_of(root, 4096);
  window_all(config);
}

void read_qwen(const JsonNode& root, ModelConfig& config) {
  config.query_key_norms = config.family.starts_with("qwen3");
  if (!boolean_or(root, "use_sliding_window", false)) {
    return;
  }
  config.sliding_window = window_of(root, 4096);
  const int64_t first = integer_or(root.find("max_window_layers"), 28, 0, kLargestLayers);
  for (int64_t i = 0; i < config.layers; ++i) {
    config.windowed.push_back(config.sliding_window > 0 && i >= first);
  }
  read_layer_types(root, config);
}

void read_gemma(const JsonNode& root, ModelConfig& config) {
  const bool third = config.family == "gemma3_text";
  config.query_key_norms = third;
  config.sliding_window = window_of(root, 4096);
  const auto pattern = find_any(root, {"sliding_window_pattern", "_sliding_window_pattern"});
  window_all_but_each(config, third ? optional_integer(pattern, 6, 1, kLargestLayers) : 2);
  read_layer_types(root, config);
  config.logit_cap = cap_of(root, "final_logit_softcapping", third ? 0.0 : 30.0);
  config.score_cap = cap_of(root, "attn_logit_softcapping", third ? 0.0 : 50.0);
  config.query_scalar = number_or(root, "query_pre_attn_scalar", 256.0, 1e-6, 1e9);
  if (const auto both = root.find("use_bidirectional_attention");
      both && !both->is_null() && both->boolean()) {
    both->fail("expected false: a causal language model attends to earlier tokens only");
  }
}

void read_normed(const JsonNode&, ModelConfig& config) {
  config.query_key_norms = true;
}

void read_olmo3(const JsonNode& root, ModelConfig& config) {
  config.query_key_norms = true;
  config.sliding_window = window_of(root, 4096);
  window_all_but_each(config, 4);
  read_layer_types(root, config);
}

void read_cohere(const JsonNode& root, ModelConfig& config) {
  config.query_key_norms = boolean_or(root, "use_qk_norm", false);
}

// transformers 5 writes the share of a head that is rotated inside the settings of rope.
void read_glm(const JsonNode& root, ModelConfig& config) {
  const auto settings = root.find("rope_parameters");
  const bool inside = settings && settings->json().is_object() &&
                      settings->find("partial_rotary_factor").has_value();
  config.rotary_share =
      number_or(inside ? *settings : root, "partial_rotary_factor", 0.5, 0.0, 1.0);
}

// Of the layers without a rotary embedding some may have a window.
void read_smollm3(const JsonNode& root, ModelConfig& config) {
  const int64_t interval = integer_or(root.find("no_rope_layer_interval"), 4, 1, kLargestLayers);
  for (int64_t i = 1; i <= config.layers; ++i) {
    config.unrotated.push_back(i % interval == 0);
  }
  if (const auto rotated = root.find("no_rope_layers"); rotated && !rotated->is_null()) {
    const std::vector<JsonNode> flags = rotated->items("1 or 0 for each layer");
    if (static_cast<int64_t>(flags.size()) < config.layers) {
      rotated->fail(fmt::format("expected {} numbers, one for each layer, found {}", config.layers,
                                flags.size()));
    }
    for (size_t i = 0; i < config.unrotated.size(); ++i) {
      config.unrotated[i] = flags[i].integer(0, 1) == 0;
    }
  }
  if (!boolean_or(root, "use_sliding_window", false)) {
    return;
  }
  config.sliding_window = window_of(root, 0);
  if (config.sliding_window > 0) {
    config.windowed = config.unrotated;
    read_layer_types(root, config);
  }
}

void read_ernie(const JsonNode& root, ModelConfig& config) {
  config.attention_bias = config.mlp_bias = boolean_or(root, "use_bias", false);
}

void read_seed_oss(const JsonNode& root, ModelConfig& config) {
  if (boolean_or(root, "attention_out_bias", false)) {
    root.require("attention_out_bias").fail(unsupported(root, "expected false"));
  }
  config.dropout = std::max(config.dropout, number_or(root, "residual_dropout", 0.1, 0.0, 1.0));
}

void read_phi3(const JsonNode& root, ModelConfig& config) {
  config.sliding_window = window_of(root, 0);
  window_all(config);
  config.rotary_share = number_or(root, "partial_rotary_factor", 1.0, 0.0, 1.0);
}

void read_opt(const JsonNode& root, ModelConfig& config) {
  config.norm_before = boolean_or(root, "do_layer_norm_before", true);
  config.final_norm = config.norm_before && !boolean_or(root, "_remove_final_layer_norm", false);
  config.affine_norms = boolean_or(root, "layer_norm_elementwise_affine", true);
  config.embedding_size =
      optional_integer(root.find("word_embed_proj_dim"), config.hidden_size, 1, kLargestWidth);
  config.attention_bias = config.mlp_bias = boolean_or(root, "enable_bias", true);
  config.dropout = std::max(config.dropout, number_or(root, "dropout", 0.1, 0.0, 1.0));
  if (const double drop = number_or(root, "layerdrop", 0.0, 0.0, 1.0); drop > 0) {
    root.require("layerdrop").fail("expected 0: layers that are left out at random have no plan");
  }
}

// Its intermediate_size is given as a multiple of the hidden size.
void read_mpt(const JsonNode& root, ModelConfig& config) {
  static const std::vector<std::string> kTypes{"multihead_attention"};
  if (config.intermediate_size > kLargestWidth * 8 / config.hidden_size) {
    root.require("expansion_ratio").fail("the MLP is too wide");
  }
  config.intermediate_size *= config.hidden_size;
  if (!boolean_or(root, "no_bias", true)) {
    root.require("no_bias").fail("expected true: the modules of transformers have no biases");
  }
  if (const auto attention = root.find("attn_config"); attention && !attention->is_null()) {
    attention->expect_object("an object with the settings of attention");
    if (const auto type = attention->find("attn_type")) {
      (void)type->one_of(kTypes);
    }
    if (boolean_or(*attention, "qk_ln", false)) {
      attention->require("qk_ln").fail(
          "expected false: the modules of transformers have no such "
          "norms");
    }
    if (boolean_or(*attention, "prefix_lm", false)) {
      attention->require("prefix_lm").fail("expected false: a causal language model");
    }
    const auto clip = attention->find("clip_qkv");
    config.clips_queries = clip && !clip->is_null() && !(clip->json() == false);
    config.dropout = std::max(config.dropout, number_or(*attention, "attn_pdrop", 0.0, 0.0, 1.0));
  }
}

void read_mixtral(const JsonNode& root, ModelConfig& config) {
  config.sliding_window = window_of(root, 0);
  window_all(config);
  read_experts(root, {"num_local_experts", "num_experts"}, 8, 2, config.intermediate_size, config);
  config.experts.normalized = true;
  config.experts.jitter = number_or(root, "router_jitter_noise", 0.0, 0.0, 1.0);
}

void read_qwen3_moe(const JsonNode& root, ModelConfig& config) {
  config.query_key_norms = true;
  if (boolean_or(root, "use_sliding_window", false)) {
    config.sliding_window = window_of(root, 4096);
    window_all(config);
  }
  read_experts(root, {"num_experts", "num_local_experts"}, 128, 8,
               integer_or(root.find("moe_intermediate_size"), 768, 1, kLargestWidth * 8), config);
  config.experts.normalized = boolean_or(root, "norm_topk_prob", false);
  const int64_t step = integer_or(root.find("decoder_sparse_step"), 1, 1, kLargestLayers);
  for (int64_t i = 0; i < config.layers; ++i) {
    config.sparse[static_cast<size_t>(i)] = (i + 1) % step == 0;
  }
  if (const auto dense = root.find("mlp_only_layers"); dense && !dense->is_null()) {
    for (const JsonNode& layer : dense->items("a list of layers")) {
      const int64_t index = layer.integer(0, kLargestLayers);
      if (index < config.layers) {
        config.sparse[static_cast<size_t>(index)] = false;
      }
    }
  }
}

// transformers runs sinks with FlashAttention 3 or 4, or as eager operators.
// Source  transformers 5.23: models/gpt_oss/modeling_gpt_oss.py
// (_compatible_flash_implementations).
void read_gpt_oss(const JsonNode& root, ModelConfig& config) {
  for (const char* key : {"attn_implementation", "_attn_implementation"}) {
    const auto kernel = root.find(key);
    config.flash =
        config.flash || (kernel && kernel->json().is_string() &&
                         kernel->json().get<std::string>().find("flash") != std::string::npos);
  }
  config.sliding_window = window_of(root, 128);
  window_all_but_each(config, 2);
  read_layer_types(root, config);
  read_experts(root, {"num_local_experts", "num_experts"}, 128, 4, config.intermediate_size,
               config);
}

void read_deepseek_v3(const JsonNode& root, ModelConfig& config) {
  read_experts(root, {"n_routed_experts", "num_local_experts"}, 256, 8,
               integer_or(root.find("moe_intermediate_size"), 2048, 1, kLargestWidth * 8), config);
  config.experts.shared = integer_or(root.find("n_shared_experts"), 1, 1, kLargestExperts);
  const int64_t dense = optional_integer(root.find("first_k_dense_replace"), 3, 0, kLargestLayers);
  for (int64_t i = 0; i < std::min(dense, config.layers); ++i) {
    config.sparse[static_cast<size_t>(i)] = false;
  }
  if (integer_or(root.find("moe_layer_freq"), 1, 1, kLargestLayers) != 1) {
    root.require("moe_layer_freq").fail("expected 1: experts in every layer after the dense ones");
  }
  ModelConfig::Latent& latent = config.latent;
  const auto query = root.find("q_lora_rank");
  latent.query_rank = query && query->is_null() ? 0 : integer_or(query, 1536, 1, kLargestWidth);
  latent.key_value_rank = integer_or(root.find("kv_lora_rank"), 512, 1, kLargestWidth);
  latent.rope_dim = integer_or(root.find("qk_rope_head_dim"), 64, 1, kLargestWidth);
  latent.plain_dim = integer_or(root.find("qk_nope_head_dim"), 128, 1, kLargestWidth);
  latent.value_dim = integer_or(root.find("v_head_dim"), 128, 1, kLargestWidth);
  for (const char* key : {"attn_implementation", "_attn_implementation"}) {
    const auto kernel = root.find(key);
    latent.sdpa = latent.sdpa || (kernel && kernel->json() == "sdpa");
  }
  config.head_dim = latent.rope_dim + latent.plain_dim;
}

}  // namespace shardlens::plan
