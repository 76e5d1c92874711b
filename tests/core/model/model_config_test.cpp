#include "core/model/model_config.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string config_error_of(const std::string& text) {
  try {
    (void)parse_model_config(text, "config.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

json expected_of(const std::string& model) {
  json out;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/models/" + model + "/expected.json") >> out;
  return out;
}

ModelConfig config_of(const std::string& model) {
  return load_model_config(std::string(SHARDLENS_TEST_DATA) + "/models/" + model);
}

// Compares the numbers read from each config.json with those that transformers reads.
TEST(ModelConfigTest, LlamaReadsLikeTransformers) {
  for (const std::string model :
       {"llama-defaults", "llama-untied", "llama-tied-gqa", "llama-biases", "llama-head-dim",
        "llama-rope-flat", "llama-rope-nested"}) {
    SCOPED_TRACE(model);
    const json expected = expected_of(model);
    const json& numbers = expected["numbers"];
    const ModelConfig config = config_of(model);
    EXPECT_EQ(config.torch_type, expected["class"]);
    EXPECT_EQ(config.vocab_size, numbers["vocab_size"]);
    EXPECT_EQ(config.hidden_size, numbers["hidden_size"]);
    EXPECT_EQ(config.intermediate_size, numbers["intermediate_size"]);
    EXPECT_EQ(config.layers, numbers["num_hidden_layers"]);
    EXPECT_EQ(config.heads, numbers["num_attention_heads"]);
    EXPECT_EQ(config.kv_heads, numbers["num_key_value_heads"]);
    EXPECT_EQ(config.head_dim, numbers["head_dim"]);
    EXPECT_EQ(config.max_positions, numbers["max_position_embeddings"]);
    EXPECT_EQ(config.norm_eps, numbers["rms_norm_eps"]);
    EXPECT_EQ(config.initializer_range, numbers["initializer_range"]);
    EXPECT_EQ(config.activation, numbers["hidden_act"]);
    EXPECT_EQ(config.dropout, numbers["attention_dropout"]);
    EXPECT_EQ(config.tie_word_embeddings, expected["tie_word_embeddings"]);
    const json& rope = expected["rope"];
    EXPECT_EQ(config.rope_theta, rope["rope_theta"]);
    EXPECT_EQ(config.rope_type, rope["rope_type"]);
    EXPECT_EQ(config.rope_factor, rope.value("factor", 1.0));
    EXPECT_EQ(config.rope_low_freq_factor, rope.value("low_freq_factor", 1.0));
    EXPECT_EQ(config.rope_high_freq_factor, rope.value("high_freq_factor", 4.0));
    EXPECT_EQ(config.rope_original_max_positions,
              rope.value("original_max_position_embeddings", 0));
  }
  EXPECT_EQ(config_of("llama-head-dim").dtype, DType::kBF16);
  EXPECT_EQ(config_of("llama-untied").dtype, DType::kF32);
}

TEST(ModelConfigTest, Gpt2ReadsLikeTransformers) {
  for (const std::string model :
       {"gpt2-defaults", "gpt2-tied", "gpt2-untied-inner", "gpt2-mapped-names"}) {
    SCOPED_TRACE(model);
    const json expected = expected_of(model);
    const json& numbers = expected["numbers"];
    const ModelConfig config = config_of(model);
    EXPECT_EQ(config.torch_type, expected["class"]);
    EXPECT_EQ(config.vocab_size, numbers["vocab_size"]);
    EXPECT_EQ(config.hidden_size, numbers["hidden_size"]);
    EXPECT_EQ(config.intermediate_size, numbers["n_inner"].is_null()
                                            ? 4 * config.hidden_size
                                            : numbers["n_inner"].get<int64_t>());
    EXPECT_EQ(config.layers, numbers["num_hidden_layers"]);
    EXPECT_EQ(config.heads, numbers["num_attention_heads"]);
    EXPECT_EQ(config.max_positions, numbers["max_position_embeddings"]);
    EXPECT_EQ(config.norm_eps, numbers["layer_norm_epsilon"]);
    EXPECT_EQ(config.activation, numbers["activation_function"]);
    EXPECT_EQ(config.dropout, numbers["resid_pdrop"]);
    EXPECT_EQ(config.tie_word_embeddings, expected["tie_word_embeddings"]);
  }
}

TEST(ModelConfigTest, ReadsTheCheckpointsOfThisRepository) {
  EXPECT_EQ(config_of("../llama-tiny").kv_heads, 2);
  EXPECT_EQ(config_of("../gpt2-tiny").intermediate_size, 256);
  EXPECT_EQ(config_of("../gpt2-tiny/config.json").layers, 4);
}

TEST(ModelConfigTest, RopeScalingWinsOverRopeParametersAsInTransformers) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "llama", "rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 3},
          "rope_parameters": {"rope_type": "default", "rope_theta": 9.0}})",
      "config.json");
  EXPECT_EQ(config.rope_type, "linear");
  EXPECT_EQ(config.rope_theta, 7.0);
  EXPECT_EQ(config.rope_factor, 3.0);
}

TEST(ModelConfigTest, MessagesNameFilePointerAndWhatWasExpected) {
  EXPECT_THAT(config_error_of("{}"),
              HasSubstr("config.json#/model_type: key 'model_type' is missing"));
  EXPECT_THAT(config_error_of(R"({"model_type": "lama"})"),
              AllOf(HasSubstr("config.json#/model_type"), HasSubstr("'llama'"),
                    HasSubstr("did you mean 'llama'?")));
  EXPECT_THAT(config_error_of(R"({"model_type": "llama", "mlp_biases": true})"),
              AllOf(HasSubstr("config.json#/mlp_biases: unknown key"),
                    HasSubstr("did you mean 'mlp_bias'?")));
  EXPECT_THAT(config_error_of(R"({"model_type": "qwen2", "attention_bias": true})"),
              HasSubstr("#/attention_bias: unknown key"));
  EXPECT_EQ(
      config_error_of(
          R"({"model_type": "qwen2", "attention_bias": false, "use_cache": true, "bos_token_id": 3})"),
      "accepted");
  EXPECT_THAT(config_error_of(R"({"model_type": "gpt_oss", "layer_types": ["full_attention"]})"),
              HasSubstr("#/layer_types: expected 36 kinds, one for each layer, found 1"));
  EXPECT_THAT(config_error_of(R"({"model_type": "mixtral", "num_experts_per_tok": 9})"),
              HasSubstr("#/num_experts_per_tok"));
  EXPECT_THAT(config_error_of(R"({"model_type": "mpt", "attn_config": {"qk_ln": true}})"),
              HasSubstr("#/attn_config/qk_ln"));
  EXPECT_THAT(config_error_of(R"({"model_type": "vit", "architectures": ["ViTModel"]})"),
              HasSubstr("#/architectures/0"));
  EXPECT_THAT(config_error_of(R"({"model_type": "gemma3"})"), HasSubstr("'gemma3_text'"));
  EXPECT_THAT(config_error_of(R"({"model_type": 3})"),
              HasSubstr("#/model_type: expected a string, found 3"));
  EXPECT_THAT(
      config_error_of(R"({"model_type": "llama", "hidden_size": "64"})"),
      HasSubstr("config.json#/hidden_size: expected an integer from 1 to 1048576, found \"64\""));
  EXPECT_THAT(config_error_of(R"({"model_type": "llama", "hidden_size": 0})"),
              HasSubstr("#/hidden_size"));
  EXPECT_THAT(
      config_error_of(R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 5})"),
      HasSubstr(
          "#/num_attention_heads: hidden_size 64 is not a multiple of num_attention_heads 5"));
  EXPECT_THAT(config_error_of(R"({"model_type": "llama", "num_key_value_heads": 5})"),
              HasSubstr("#/num_key_value_heads"));
  EXPECT_THAT(config_error_of(R"({"model_type": "llama", "hidden_act": "swiglu"})"),
              AllOf(HasSubstr("#/hidden_act"), HasSubstr("did you mean 'silu'?")));
  EXPECT_THAT(config_error_of(R"({"model_type": "llama", "head_dim": 7})"),
              HasSubstr("#/head_dim"));
  EXPECT_THAT(
      config_error_of(R"({"model_type": "llama", "rope_scaling": {"type": "yran", "factor": 2}})"),
      AllOf(HasSubstr("#/rope_scaling/type"), HasSubstr("'llama3'"), HasSubstr("yran")));
  EXPECT_THAT(
      config_error_of(
          R"({"model_type": "llama", "rope_parameters": {"rope_type": "llama3", "factor": 2}})"),
      HasSubstr("#/rope_parameters/low_freq_factor: key 'low_freq_factor' is missing"));
  EXPECT_THAT(config_error_of(
                  R"({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 0}})"),
              HasSubstr("#/rope_scaling/factor"));
  EXPECT_THAT(config_error_of(R"({"model_type": "llama", "quantization_config": 4})"),
              HasSubstr("#/quantization_config"));
  EXPECT_THAT(config_error_of(R"({"model_type": "gpt2", "add_cross_attention": true})"),
              HasSubstr("#/add_cross_attention"));
  EXPECT_THAT(config_error_of(R"({"model_type": "llama", "vocab_size": 1, "vocab_size": 2})"),
              HasSubstr("key 'vocab_size' is given twice"));
  EXPECT_THAT(config_error_of("{"),
              AllOf(HasSubstr("config.json: "), HasSubstr("not valid JSON at byte")));
  EXPECT_THAT(config_error_of("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(config_error_of(""), HasSubstr("not valid JSON"));
}

// A damaged or absurd config gives an InputError or a model with valid sizes.
TEST(ModelConfigTest, MutatedConfigsNeverEscapeAsAnotherError) {
  std::mt19937_64 engine(11);
  const auto pick = [&engine](size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(engine);
  };
  int accepted = 0;
  int rejected = 0;
  for (const std::string model : {"llama-rope-nested", "llama-tied-gqa", "gpt2-untied-inner",
                                  "gpt2-mapped-names", "gemma3-small", "opt-post-norm"}) {
    std::ifstream in(std::string(SHARDLENS_TEST_DATA) + "/models/" + model + "/config.json");
    const std::string good(std::istreambuf_iterator<char>(in), {});
    for (int trial = 0; trial < 1000; ++trial) {
      std::string text = good;
      for (size_t i = 1 + pick(3); i > 0; --i) {
        switch (pick(3)) {
          case 0:
            text[pick(text.size())] = "{}[]\",:0123456789.-e"[pick(20)];
            break;
          case 1:
            text.erase(pick(text.size()), 1 + pick(20));
            break;
          default:
            text.insert(pick(text.size()), std::to_string(pick(1000000)));
            break;
        }
      }
      try {
        const ModelConfig config = parse_model_config(text, "config.json");
        if (config.layers <= 64) {
          for (const Parameter& parameter : module_tree(config).parameters) {
            EXPECT_GT(parameter.numel, 0);
          }
        }
        ++accepted;
      } catch (const InputError&) {
        ++rejected;
      }
    }
  }
  EXPECT_GT(accepted, 200);
  EXPECT_GT(rejected, 1000);
}

TEST(ModelConfigTest, MissingFilesAreNamed) {
  const auto message = [](const std::string& path) {
    try {
      (void)load_model_config(path);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message("/no/such/model"),
              AllOf(HasSubstr("/no/such/model"), HasSubstr("does not exist")));
  EXPECT_THAT(message(SHARDLENS_TEST_DATA), HasSubstr("has no config.json"));
}

}  // namespace
}  // namespace shardlens::plan
