#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "core/model/families/config_values.h"
#include "core/model/families/decoder_family.h"
#include "core/model/families/heads.h"
#include "core/model/families/rope_values.h"

namespace shardlens::plan {
namespace {

// Beyond this, sums of sizes could exceed int64.
constexpr double kLargestModel = 1e18;

constexpr auto kCommonKeys = std::to_array<std::string_view>(
    {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
     "head_dim", "max_position_embeddings", "tie_word_embeddings", "attention_dropout",
     "rope_theta", "rope_scaling", "rope_parameters", "lora"});

void read_heads(const JsonNode& root, const DecoderFamily& family, ModelConfig& config) {
  const DecoderDefaults& defaults = family.defaults;
  const auto heads = find_any(root, {family.keys.heads, "num_attention_heads"});
  config.heads = integer_or(heads, defaults.heads, 1, kLargestWidth);
  const auto kv_heads = root.find("num_key_value_heads");
  const bool absent = kv_heads ? kv_heads->is_null() : defaults.kv_heads == 0;
  config.kv_heads =
      absent ? config.heads : integer_or(kv_heads, defaults.kv_heads, 1, config.heads);
  const auto head_dim = root.find("head_dim");
  const bool derived = head_dim ? head_dim->is_null() : defaults.head_dim == 0;
  if ((derived || family.even_heads) && config.hidden_size % config.heads != 0) {
    find_any(root, {family.keys.heads, family.keys.hidden_size})
        .value_or(root)
        .fail(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                          config.hidden_size, config.heads));
  }
  if (config.heads % config.kv_heads != 0) {
    kv_heads.value_or(root).fail(
        fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                    config.heads, config.kv_heads));
  }
  config.head_dim = derived ? config.hidden_size / config.heads
                            : integer_or(head_dim, defaults.head_dim, 1, kLargestWidth);
  if (family.rotary && config.head_dim % 2 != 0) {
    head_dim.value_or(root).fail(
        fmt::format("rotary embedding needs an even head_dim, found {}", config.head_dim));
  }
}

// As in torch.nn.Embedding, negative numbers count from the end.
int64_t padding_of(const JsonNode& root, int64_t fallback, int64_t vocabulary) {
  const auto node = root.find("pad_token_id");
  if (!node) {
    return fallback;
  }
  if (node->is_null()) {
    return -1;
  }
  const int64_t index = node->integer(-vocabulary, vocabulary - 1);
  return index < 0 ? index + vocabulary : index;
}

void require_countable(const JsonNode& root, const ModelConfig& config) {
  const ModelConfig::Experts& experts = config.experts;
  const double of_layer = 3.0 * static_cast<double>(experts.count + experts.shared) *
                          static_cast<double>(experts.intermediate_size) *
                          static_cast<double>(config.hidden_size);
  if (of_layer * static_cast<double>(config.layers) > kLargestModel) {
    root.fail("the experts have too many parameters to count");
  }
}

// {"r": 16, "target_modules": ["q_proj", …]}, as PEFT's adapter_config.json has them.
void read_lora(const JsonNode& root, const DecoderFamily& family, ModelConfig& config) {
  const auto node = root.find("lora");
  if (!node || node->is_null()) {
    return;
  }
  static const std::vector<std::string> kKeys{"r", "target_modules"};
  node->expect_object("adapters: {\"r\": 16, \"target_modules\": [\"q_proj\", …]}");
  node->allow_only(kKeys);
  if (config.experts.count > 0) {
    node->fail("adapters of models with experts are not described; expected a model without them");
  }
  config.lora.rank = node->require("r").integer(1, kLargestWidth);
  config.lora.targets = node->require("target_modules").strings("names of linear layers");
  std::vector<std::string> layers;
  for (const std::span<const Slot> slots : {family.layer, family.attention, family.mlp}) {
    for (const Slot& slot : slots) {
      if (slot.type.empty() && slot.part != Part::kActivation) {
        layers.emplace_back(slot.name);
      }
    }
  }
  for (const std::string& target : config.lora.targets) {
    if (std::ranges::find(layers, target) == layers.end()) {
      node->require("target_modules")
          .fail(fmt::format("the layers of {} have no linear layer '{}'; expected of {}",
                            config.torch_type, target, quoted_list(layers)));
    }
  }
}

}  // namespace

void read_decoder(const JsonNode& root, ModelConfig& config) {
  const DecoderFamily& family = decoder_family_of(config);
  const DecoderDefaults& defaults = family.defaults;
  const DecoderKeys& keys = family.keys;
  config.torch_type = family.torch_type;
  read_head(root, config);
  config.vocab_size =
      integer_or(root.find("vocab_size"), defaults.vocab_size, 1, kLargestVocabulary);
  config.hidden_size = integer_or(find_any(root, {keys.hidden_size, "hidden_size"}),
                                  defaults.hidden_size, 1, kLargestWidth);
  config.embedding_size = config.hidden_size;
  config.intermediate_size = integer_or(root.find(keys.intermediate_size),
                                        defaults.intermediate_size, 1, kLargestWidth * 8);
  config.layers = integer_or(find_any(root, {keys.layers, "num_hidden_layers"}), defaults.layers, 1,
                             kLargestLayers);
  config.max_positions = integer_or(find_any(root, {keys.positions, "max_position_embeddings"}),
                                    defaults.positions, 1, kLargestPositions);
  read_heads(root, family, config);
  if (!keys.norm_eps.empty()) {
    config.norm_eps = number_or(root, keys.norm_eps, defaults.norm_eps, 0.0, 1.0);
  }
  config.activation = activation(root, keys.activation, std::string(defaults.activation));
  config.tie_word_embeddings = boolean_or(root, "tie_word_embeddings", defaults.tied);
  config.attention_bias = boolean_or(root, "attention_bias", defaults.biased);
  config.mlp_bias = boolean_or(root, "mlp_bias", false);
  config.dropout = number_or(root, "attention_dropout", 0.0, 0.0, 1.0);
  if (family.trained) {
    config.padding_index = padding_of(root, defaults.padding_index, config.vocab_size);
    if (family.read_own != read_llama_rope) {
      read_rope(root, defaults.rope_theta, defaults.rope_local_theta, config);
    }
  }
  if (family.read_own != nullptr) {
    family.read_own(root, config);
  }
  require_countable(root, config);
  read_lora(root, family, config);
  const std::array names{keys.hidden_size, keys.intermediate_size, keys.layers,  keys.heads,
                         keys.positions,   keys.activation,        keys.norm_eps};
  constexpr std::array<std::string_view, 2> kBiases{"attention_bias", "mlp_bias"};
  const std::span<const std::string_view> biases(kBiases);
  const size_t first = family.query_bias == Bias::kOfKey ? 0 : 1;
  const size_t last = family.mlp_bias == Bias::kOfKey ? 2 : 1;
  refuse_unknown_keys(root,
                      {names, kCommonKeys, biases.subspan(first, last - first), family.own_keys});
}

}  // namespace shardlens::plan
