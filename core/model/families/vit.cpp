#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/model/families/config_values.h"
#include "core/model/families/heads.h"
#include "core/model/families/model_family.h"
#include "core/model/families/transformer_parts.h"
#include "core/tree/tree_builder.h"

namespace shardlens::plan {
namespace {

constexpr auto kVitKeys = std::to_array<std::string_view>(
    {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
     "hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "image_size",
     "patch_size", "num_channels", "qkv_bias", "encoder_stride", "pooler_output_size",
     "pooler_act"});

// Height and width: a number for both, or two.
std::pair<int64_t, int64_t> read_size(const JsonNode& root,
                                      std::string_view key,
                                      int64_t fallback) {
  const auto node = root.find(key);
  if (!node || !node->json().is_array()) {
    const int64_t size = integer_or(node, fallback, 1, kLargestWidth);
    return {size, size};
  }
  const std::vector<JsonNode> both = node->items("height and width");
  if (both.size() != 2) {
    node->fail(fmt::format("expected height and width, found {} numbers", both.size()));
  }
  return {both[0].integer(1, kLargestWidth), both[1].integer(1, kLargestWidth)};
}

// ViTForImageClassification, which has no pooler.
void read_vit(const JsonNode& root, ModelConfig& config) {
  static const std::vector<std::string> kClasses{"ViTForImageClassification"};
  config.torch_type = kClasses.front();
  if (const auto classes = root.find("architectures"); classes && !classes->is_null()) {
    for (const JsonNode& each : classes->items("names of classes")) {
      (void)each.one_of(kClasses);
    }
  }
  config.hidden_size = integer_or(root.find("hidden_size"), 768, 1, kLargestWidth);
  config.layers = integer_or(root.find("num_hidden_layers"), 12, 1, kLargestLayers);
  const auto heads = root.find("num_attention_heads");
  config.heads = config.kv_heads = integer_or(heads, 12, 1, kLargestWidth);
  if (config.hidden_size % config.heads != 0) {
    heads.value_or(root).fail(fmt::format("hidden_size {} is not a multiple of {} attention heads",
                                          config.hidden_size, config.heads));
  }
  config.head_dim = config.hidden_size / config.heads;
  config.intermediate_size = integer_or(root.find("intermediate_size"), 3072, 1, kLargestWidth * 8);
  config.activation = activation(root, "hidden_act", "gelu");
  config.norm_eps = number_or(root, "layer_norm_eps", 1e-12, 0.0, 1.0);
  config.attention_bias = boolean_or(root, "qkv_bias", true);
  for (const std::string_view key : {"hidden_dropout_prob", "attention_probs_dropout_prob"}) {
    config.dropout = std::max(config.dropout, number_or(root, key, 0.0, 0.0, 1.0));
  }
  const auto [height, width] = read_size(root, "image_size", 224);
  std::tie(config.patch_height, config.patch_width) = read_size(root, "patch_size", 16);
  config.patches = (height / config.patch_height) * (width / config.patch_width);
  if (config.patches == 0) {
    root.find("patch_size").value_or(root).fail("the image is smaller than a patch");
  }
  config.channels = integer_or(root.find("num_channels"), 3, 1, kLargestVocabulary >> 20U);
  config.labels = labels_of(root);
  config.max_positions = config.patches + 1;
  refuse_unknown_keys(root, {kVitKeys});
}

// Source: transformers 5.23 models/vit/modeling_vit.py.
ModuleTree vit_tree(const ModelConfig& config) {
  TreeBuilder build(config.torch_type);
  const int64_t hidden = config.hidden_size;
  const uint32_t vit = build.module(0, "vit", "ViTModel");
  const uint32_t embeddings = build.module(vit, "embeddings", "ViTEmbeddings");
  build.parameter(embeddings, "cls_token", {1, 1, hidden});
  build.parameter(embeddings, "position_embeddings", {1, config.patches + 1, hidden});
  const uint32_t patches = build.module(embeddings, "patch_embeddings", "ViTPatchEmbeddings");
  const uint32_t projection = build.module(patches, "projection", "Conv2d");
  build.parameter(projection, "weight",
                  {hidden, config.channels, config.patch_height, config.patch_width});
  build.parameter(projection, "bias", {hidden});
  build.module(embeddings, "dropout", "Dropout");
  const uint32_t layers = build.module(vit, "layers", "ModuleList");
  for (int64_t i = 0; i < config.layers; ++i) {
    const uint32_t layer = build.module(layers, std::to_string(i), "ViTLayer");
    build.block(layer);
    const uint32_t attention = build.module(layer, "attention", "ViTAttention");
    for (const std::string name : {"q_proj", "k_proj", "v_proj"}) {
      build.linear(attention, name, hidden, hidden, config.attention_bias);
    }
    build.linear(attention, "o_proj", hidden, hidden, true);
    build.layer_norm(layer, "layernorm_before", hidden);
    build.layer_norm(layer, "layernorm_after", hidden);
    const uint32_t mlp = build.module(layer, "mlp", "ViTMLP");
    build.module(mlp, "activation_fn", activation_type(config.activation));
    build.linear(mlp, "fc1", hidden, config.intermediate_size, true);
    build.linear(mlp, "fc2", config.intermediate_size, hidden, true);
    build.module(layer, "dropout", "Dropout");
  }
  build.layer_norm(vit, "layernorm", hidden);
  build.linear(0, "classifier", hidden, config.labels, true);
  return build.take();
}

void vit_layer(WorkloadBuilder& build, const ModelConfig& config, const std::string& layer) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const auto projection = [&](const std::string& name, bool keeps_input, bool sums) {
    build.linear(layer + ".attention." + name, {.in = hidden,
                                                .out = hidden,
                                                .bias = config.attention_bias,
                                                .keeps_input = keeps_input,
                                                .sums_input_grad = sums});
  };
  const auto dropout = [&] {  // an identity: training with dropout is not supported
    build.enter(layer + ".dropout");
    build.leave();
  };
  build.enter(layer);
  layer_norm(build, layer + ".layernorm_before", hidden);
  build.enter(layer + ".attention");
  projection("q_proj", true, true);
  projection("k_proj", false, true);
  projection("v_proj", false, false);
  build.attention({.heads = config.heads,
                   .kv_heads = config.heads,
                   .head_dim = config.head_dim,
                   .causal = false});
  build.linear(layer + ".attention.o_proj",
               {.in = hidden, .out = hidden, .bias = true, .keeps_input = false});
  build.leave();
  dropout();
  build.add(hidden);
  layer_norm(build, layer + ".layernorm_after", hidden);
  build.enter(layer + ".mlp");
  build.linear(layer + ".mlp.fc1", {.in = hidden, .out = inner, .bias = true});
  build.enter(layer + ".mlp.activation_fn");
  build.activation(config.activation, inner);
  build.leave();
  build.linear(
      layer + ".mlp.fc2",
      {.in = inner, .out = hidden, .bias = true, .keeps_input = config.activation != "relu"});
  build.leave();
  build.add(hidden);
  build.leave();
}

// Shapes  B images of P patches; the blocks run B · (P + 1) rows, the classifier B.
void vit_forward(WorkloadBuilder& build, const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t batch = build.batch();
  build.enter("vit");
  build.enter("vit.embeddings");
  build.enter("vit.embeddings.patch_embeddings");
  build.set_rows(batch * config.patches);
  // A convolution whose windows do not overlap is a product of the patches.
  build.linear("vit.embeddings.patch_embeddings.projection",
               {.in = config.channels * config.patch_height * config.patch_width,
                .out = hidden,
                .bias = true,
                .input_grad = false});
  build.leave();
  build.set_rows(batch * (config.patches + 1));
  build.elementwise("aten::cat", "aten::split", {.read = hidden, .written = hidden});
  build.add(hidden);  // of the positions
  build.enter("vit.embeddings.dropout");
  build.leave();
  build.leave();
  for (int64_t i = 0; i < config.layers; ++i) {
    vit_layer(build, config, fmt::format("vit.layers.{}", i));
  }
  layer_norm(build, "vit.layernorm", hidden, false);
  build.leave();
  build.set_rows(batch);
  build.linear("classifier", {.in = hidden, .out = config.labels, .bias = true});
}

}  // namespace

extern const ModelFamily kVitFamily;
const ModelFamily kVitFamily{"vit", read_vit, vit_tree, vit_forward};

}  // namespace shardlens::plan
