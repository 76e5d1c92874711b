#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/model/families/config_values.h"
#include "core/model/families/heads.h"
#include "core/model/families/model_family.h"
#include "core/tree/tree_builder.h"

namespace shardlens::plan {
namespace {

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
  add_head(build, config, config.hidden_size, embedding);
  return build.take();
}

void mlp_forward(WorkloadBuilder& build, const ModelConfig& config) {
  build.enter("embed_tokens");
  build.embedding(config.hidden_size);
  build.leave();
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("layers.{}", i);
    build.enter(layer);
    build.linear(layer + ".fc1", {.in = config.hidden_size,
                                  .out = config.intermediate_size,
                                  .bias = true,
                                  .sums_input_grad = true});
    build.activation("relu", config.intermediate_size);
    build.linear(layer + ".fc2", {.in = config.intermediate_size,
                                  .out = config.hidden_size,
                                  .bias = true,
                                  .keeps_input = false});
    build.add(config.hidden_size);
    build.leave();
  }
  head_forward(build, config, config.hidden_size);
}

}  // namespace

extern const ModelFamily kMlpFamily;
const ModelFamily kMlpFamily{"mlp", read_mlp, mlp_tree, mlp_forward};

}  // namespace shardlens::plan
