#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>

#include "core/base/error.h"
#include "core/models/model.h"
#include "core/module/hookable.h"
#include "tests/core/weights/checkpoint_builder.h"

namespace shardlens::models {
namespace {

using testing::TemporaryDirectory;
using testing::write;

constexpr const char* kGroupedLlama =
    R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true,
        "max_position_embeddings": 64})";
constexpr const char* kMlp =
    R"({"model_type": "mlp", "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 3})";

void expect_same_names(const plan::ModelConfig& config) {
  const auto model = make_model(config, Init::kNone);
  const plan::ModuleTree tree = plan::module_tree(config);

  std::vector<std::string> modules;
  for (const auto& item : model->named_modules("", /*include_self=*/true)) {
    modules.push_back(item.key());
  }
  std::vector<std::string> planned;
  for (const plan::Module& module : tree.modules) {
    planned.push_back(module.fqn);
  }
  EXPECT_EQ(modules, planned);

  size_t next = 0;
  std::vector<std::string> aliases, planned_aliases;
  std::vector<at::Tensor> seen;
  for (const auto& item : model->named_parameters()) {
    if (std::any_of(seen.begin(), seen.end(),
                    [&](const at::Tensor& each) { return each.is_same(item.value()); })) {
      aliases.push_back(item.key());
      continue;
    }
    seen.push_back(item.value());
    ASSERT_LT(next, tree.parameters.size());
    const plan::Parameter& parameter = tree.parameters[next++];
    EXPECT_EQ(item.key(), parameter.fqn);
    EXPECT_EQ(item.value().sizes().vec(), parameter.shape);
    planned_aliases.insert(planned_aliases.end(), parameter.aliases.begin(),
                           parameter.aliases.end());
  }
  EXPECT_EQ(next, tree.parameters.size());
  EXPECT_EQ(aliases, planned_aliases);
}

TEST(ModuleNamesTest, EqualThePlansTree) {
  const std::filesystem::path data = SHARDLENS_TEST_DATA;
  for (const char* model : {"llama-tiny", "gpt2-tiny", "mistral-tiny", "qwen2-tiny", "qwen3-tiny",
                            "gemma2-tiny", "gemma3-tiny", "mixtral-tiny", "qwen3-moe-tiny"}) {
    SCOPED_TRACE(model);
    expect_same_names(plan::load_model_config(data / model));
  }
  const TemporaryDirectory directory;
  expect_same_names(
      plan::load_model_config(write(directory.path() / "config.json", kGroupedLlama)));
  expect_same_names(plan::load_model_config(write(directory.path() / "config.json", kMlp)));
}

TEST(ModuleNamesTest, ModelsWithoutStorageHoldNoBytes) {
  const auto config =
      plan::load_model_config(std::filesystem::path(SHARDLENS_TEST_DATA) / "llama-tiny");
  for (const auto& item : make_model(config, Init::kNone)->named_parameters()) {
    EXPECT_EQ(item.value().storage().nbytes(), 0U) << item.key();
    EXPECT_TRUE(item.value().requires_grad() && item.value().is_leaf());
  }
}

TEST(ModuleNamesTest, EveryModuleWithParametersIsHookable) {
  const auto config =
      plan::load_model_config(std::filesystem::path(SHARDLENS_TEST_DATA) / "gpt2-tiny");
  const auto model = make_model(config, Init::kNone);
  int containers = 0;
  for (const auto& item : model->named_modules("", /*include_self=*/true)) {
    const bool hookable = std::dynamic_pointer_cast<module::HookPoint>(item.value()) != nullptr;
    containers += hookable ? 0 : 1;
    EXPECT_TRUE(hookable || item.key() == "transformer.h") << item.key();
  }
  EXPECT_EQ(containers, 1);
}

TEST(ModuleNamesTest, LogitsRunTheRootsHooks) {
  const auto config =
      plan::load_model_config(std::filesystem::path(SHARDLENS_TEST_DATA) / "llama-tiny");
  const auto model = make_model(config, Init::kRandom);
  int before = 0;
  const auto handle = std::dynamic_pointer_cast<module::HookPoint>(model)->register_pre_forward(
      [&](module::TensorRefs& inputs) { before += static_cast<int>(inputs.size()); });
  const at::Tensor logits = model->logits(at::zeros({1, 3}, at::kLong));
  EXPECT_EQ(before, 1);
  EXPECT_EQ(logits.sizes().vec(), (std::vector<int64_t>{1, 3, 256}));
}

std::string message_of(const std::string& config) {
  const TemporaryDirectory directory;
  try {
    const auto model = make_model(
        plan::load_model_config(write(directory.path() / "config.json", config)), Init::kNone);
    (void)model->logits(at::zeros({1, 65}, at::kLong));
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModuleNamesTest, RefusesDropoutAndTooLongSequences) {
  std::string dropout = kGroupedLlama;
  dropout.insert(1, R"("attention_dropout": 0.1, )");
  EXPECT_THAT(message_of(dropout),
              ::testing::HasSubstr("config.json#/attention_dropout: dropout 0.1"));
  EXPECT_THAT(message_of(kGroupedLlama),
              ::testing::HasSubstr("65 tokens exceeds the model's 64 positions"));
}

TEST(ModuleNamesTest, RefusesWhatIsNotTrained) {
  EXPECT_THAT(message_of(R"({"model_type": "phi3"})"),
              ::testing::HasSubstr(
                  "models of type 'phi3' can be planned and simulated, not trained; expected one "
                  "of llama, mistral, qwen2, qwen3, gemma2, gemma3_text, mixtral, qwen3_moe, gpt2, "
                  "mlp"));
  EXPECT_THAT(
      message_of(R"({"model_type": "mixtral", "router_jitter_noise": 0.1})"),
      ::testing::HasSubstr("config.json#/router_jitter_noise: noise on the router's input"));
  EXPECT_THAT(message_of(R"({"model_type": "qwen3_moe", "output_router_logits": true})"),
              ::testing::HasSubstr("config.json#/output_router_logits: the router's auxiliary"));
  EXPECT_THAT(message_of(R"({"model_type": "qwen2", "rope_parameters": {"rope_type": "yarn"}})"),
              ::testing::HasSubstr("rope type 'yarn' is not supported"));
}

}  // namespace
}  // namespace shardlens::models
