#include "core/weights/checkpoint_layout.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/weights/safetensors_writer.h"
#include "tests/core/weights/checkpoint_builder.h"

namespace shardlens::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// Two experts of width 2 for a hidden size of 3; the first layer of qwen3_moe is dense.
plan::ModelConfig config_of(const std::string& family) {
  return plan::parse_model_config(
      R"({"vocab_size": 5, "hidden_size": 3, "intermediate_size": 2,
          "num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2,
          "num_experts_per_tok": 1, "num_local_experts": 2, )" +
          std::string(family == "qwen3_moe"
                          ? R"("moe_intermediate_size": 2, "mlp_only_layers": [0], )"
                          : "") +
          R"("model_type": ")" + family + R"("})",
      "config.json");
}

plan::Parameter parameter_of(const plan::ModelConfig& config, const std::string& fqn) {
  for (const plan::Parameter& parameter : plan::module_tree(config).parameters) {
    if (parameter.fqn == fqn) {
      return parameter;
    }
  }
  ADD_FAILURE() << fqn;
  return {};
}

std::vector<std::string> names_of(const plan::ModelConfig& config, const std::string& fqn) {
  std::vector<std::string> out;
  for (const StoredTensor& each : stored_tensors(config, parameter_of(config, fqn))) {
    out.push_back(each.name);
  }
  return out;
}

// The names in the published checkpoints of Mixtral-8x7B-v0.1 and Qwen3-30B-A3B.
TEST(CheckpointLayoutTest, NamesAreThoseOfPublishedCheckpoints) {
  const plan::ModelConfig mixtral = config_of("mixtral");
  EXPECT_THAT(names_of(mixtral, "model.layers.1.mlp.gate.weight"),
              ElementsAre("model.layers.1.block_sparse_moe.gate.weight"));
  EXPECT_THAT(names_of(mixtral, "model.layers.1.mlp.experts.gate_up_proj"),
              ElementsAre("model.layers.1.block_sparse_moe.experts.0.w1.weight",
                          "model.layers.1.block_sparse_moe.experts.0.w3.weight",
                          "model.layers.1.block_sparse_moe.experts.1.w1.weight",
                          "model.layers.1.block_sparse_moe.experts.1.w3.weight"));
  EXPECT_THAT(names_of(mixtral, "model.layers.0.mlp.experts.down_proj"),
              ElementsAre("model.layers.0.block_sparse_moe.experts.0.w2.weight",
                          "model.layers.0.block_sparse_moe.experts.1.w2.weight"));
  EXPECT_THAT(names_of(mixtral, "model.layers.0.self_attn.q_proj.weight"),
              ElementsAre("model.layers.0.self_attn.q_proj.weight"));
  const plan::ModelConfig qwen = config_of("qwen3_moe");
  EXPECT_THAT(names_of(qwen, "model.layers.1.mlp.experts.gate_up_proj"),
              ElementsAre("model.layers.1.mlp.experts.0.gate_proj.weight",
                          "model.layers.1.mlp.experts.0.up_proj.weight",
                          "model.layers.1.mlp.experts.1.gate_proj.weight",
                          "model.layers.1.mlp.experts.1.up_proj.weight"));
  EXPECT_THAT(names_of(qwen, "model.layers.0.mlp.gate_proj.weight"),
              ElementsAre("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_THAT(names_of(qwen, "model.layers.1.mlp.gate.weight"),
              ElementsAre("model.layers.1.mlp.gate.weight"));
}

// A file with these tensors, each with the values first, first + 1, …
Checkpoint file_with(const std::filesystem::path& path,
                     const std::vector<std::tuple<std::string, std::vector<int64_t>, float>>& of) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const auto& [name, shape, first] : of) {
    tensors.push_back({name, DType::kF32, shape});
  }
  SafetensorsWriter writer(path, tensors);
  for (const auto& [name, shape, first] : of) {
    std::vector<float> values(static_cast<size_t>(
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
    std::iota(values.begin(), values.end(), first);
    writer.append(std::as_bytes(std::span(values)));
  }
  writer.finish();
  return Checkpoint::open(path);
}

TEST(CheckpointLayoutTest, ReadsAnyPartOfTheExperts) {
  const TemporaryDirectory directory;
  const std::string experts = "model.layers.0.block_sparse_moe.experts.";
  const Checkpoint checkpoint =
      file_with(directory.path() / "model.safetensors", {{experts + "1.w3.weight", {2, 3}, 30},
                                                         {experts + "0.w1.weight", {2, 3}, 0},
                                                         {experts + "1.w1.weight", {2, 3}, 20},
                                                         {experts + "0.w3.weight", {2, 3}, 10}});
  const plan::ModelConfig config = config_of("mixtral");
  const CheckpointParameter parameter(
      checkpoint, config, parameter_of(config, "model.layers.0.mlp.experts.gate_up_proj"));
  const std::vector<float> whole{0,  1,  2,  3,  4,  5,  10, 11, 12, 13, 14, 15,
                                 20, 21, 22, 23, 24, 25, 30, 31, 32, 33, 34, 35};
  for (size_t first = 0; first <= whole.size(); ++first) {
    for (size_t count = 0; first + count <= whole.size(); ++count) {
      std::vector<float> found(count);
      parameter.read(static_cast<int64_t>(first), found);
      EXPECT_TRUE(std::equal(found.begin(), found.end(), whole.begin() + first))
          << first << " " << count;
    }
  }
}

// transformers 5 can also save the modules' own parameters.
TEST(CheckpointLayoutTest, ReadsExpertsThatAreOneTensor) {
  const TemporaryDirectory directory;
  const Checkpoint checkpoint = file_with(directory.path() / "model.safetensors",
                                          {{"layers.0.mlp.experts.down_proj", {2, 3, 2}, 7}});
  const plan::ModelConfig config = config_of("mixtral");
  std::vector<float> found(3);
  CheckpointParameter(checkpoint, config,
                      parameter_of(config, "model.layers.0.mlp.experts.down_proj"))
      .read(4, found);
  EXPECT_THAT(found, ElementsAre(11, 12, 13));
}

TEST(CheckpointLayoutTest, NamesWhatIsMissingOrHasAnotherShape) {
  const TemporaryDirectory directory;
  const std::string experts = "model.layers.1.mlp.experts.";
  const Checkpoint checkpoint = file_with(
      directory.path() / "model.safetensors",
      {{experts + "0.down_proj.weight", {3, 2}, 0}, {experts + "0.gate_proj.weight", {3, 2}, 0}});
  const plan::ModelConfig config = config_of("qwen3_moe");
  const auto message = [&](const std::string& fqn) {
    try {
      CheckpointParameter found(checkpoint, config, parameter_of(config, fqn));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message(experts + "down_proj"), HasSubstr(experts + "1.down_proj.weight"));
  EXPECT_THAT(message(experts + "gate_up_proj"),
              HasSubstr("tensor '" + experts +
                        "0.gate_proj.weight' has shape [3, 2], the model's config needs [2, 3]"));
}

}  // namespace
}  // namespace shardlens::models
