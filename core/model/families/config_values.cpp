#include "core/model/families/config_values.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace shardlens::plan {
namespace {

// Keys of configs of all families that do not change which modules and parameters a model has, nor
// what its forward computes in training: tokens, generation, labels of classes, provenance.
constexpr auto kHarmlessKeys = std::to_array<std::string_view>({
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_experts_implementation",
    "_name_or_path",
    "add_bos_token",
    "add_eos_token",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "name",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "quantization_config",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "transformers.js_config",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
});

// As a word of a shell's command.
std::string in_shell(const std::string& path) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+,:=@%";
  if (path.find_first_not_of(kPlain) == std::string::npos) {
    return path;
  }
  std::string out = "\"";
  for (const char c : path) {
    out += std::string_view("\"$`\\").find(c) != std::string_view::npos ? "\\" : "";
    out += c;
  }
  return out + "\"";
}

}  // namespace

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
  static const std::vector<std::string> kActivations{"silu", "gelu", "gelu_new", "relu",
                                                     "gelu_pytorch_tanh"};
  const auto node = root.find(key);
  if (node && node->json().is_string() &&
      std::ranges::find(kActivations, node->string()) == kActivations.end()) {
    node->fail(
        unsupported(*node, fmt::format("expected one of {}, found {}{}", quoted_list(kActivations),
                                       node->shown(), suggestion(node->string(), kActivations))));
  }
  return node ? kActivations[node->one_of(kActivations)] : fallback;
}

std::string unsupported(const JsonNode& node, const std::string& what) {
  std::filesystem::path model = node.source();
  if (model.filename() == "config.json") {
    model = model.has_parent_path() ? model.parent_path() : ".";
  }
  return fmt::format(
      "{}; 'python -m shardlens.export --hf {} --out model.json' makes a model.json of it with "
      "transformers, which --model takes",
      what, in_shell(model.string()));
}

void refuse_unknown_keys(const JsonNode& root,
                         std::initializer_list<std::span<const std::string_view>> known) {
  const auto has = [](std::span<const std::string_view> keys, std::string_view key) {
    return std::ranges::find(keys, key) != keys.end();
  };
  std::vector<std::string> expected;
  for (const std::span<const std::string_view> keys : known) {
    expected.insert(expected.end(), keys.begin(), keys.end());
  }
  for (const std::string& key : root.keys()) {
    const auto within = [&](std::span<const std::string_view> keys) { return has(keys, key); };
    if (std::ranges::any_of(known, within) || has(kHarmlessKeys, key)) {
      continue;
    }
    const JsonNode node = root.require(key);
    if (!node.is_null() && node.json() != false) {
      node.fail(unsupported(
          node, fmt::format("unknown key, which may change the modules of the model{}; remove it "
                            "if it does not",
                            suggestion(key, expected))));
    }
  }
}

}  // namespace shardlens::plan
