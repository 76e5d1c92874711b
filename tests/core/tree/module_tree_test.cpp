#include "core/tree/module_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/model/model_config.h"
#include "tests/support/case_name.h"

namespace shardlens::plan {
namespace {

using nlohmann::json;

// Each folder contains a config.json and the modules that transformers 5.23 builds from it
// (tests/tools/module_fixtures.py).
class ModuleTreeTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string folder = std::string(SHARDLENS_TEST_DATA) + "/models/" + GetParam();
    std::ifstream(folder + "/expected.json") >> expected_;
    config_ = load_model_config(folder);
    tree_ = module_tree(config_);
  }

  json expected_;
  ModelConfig config_;
  ModuleTree tree_;
};

TEST_P(ModuleTreeTest, HasTheModulesOfTransformersInOrder) {
  json found = json::array();
  for (const Module& module : tree_.modules) {
    found.push_back({module.fqn, module.type});
  }
  EXPECT_EQ(found, expected_["modules"]);
}

TEST_P(ModuleTreeTest, HasTheParametersOfTransformersInOrder) {
  json found = json::array();
  for (const Parameter& parameter : tree_.parameters) {
    found.push_back({parameter.fqn, parameter.shape});
    int64_t numel = 1;
    for (const int64_t size : parameter.shape) {
      numel *= size;
    }
    EXPECT_EQ(parameter.numel, numel) << parameter.fqn;
  }
  EXPECT_EQ(found, expected_["parameters"]);
}

TEST_P(ModuleTreeTest, NamesTiedParametersByEveryOwner) {
  json found = json::object();
  for (const Parameter& parameter : tree_.parameters) {
    if (!parameter.aliases.empty()) {
      found[parameter.fqn] = parameter.aliases;
    }
  }
  EXPECT_EQ(found, expected_["aliases"]);
}

TEST_P(ModuleTreeTest, LinksParentsChildrenAndBlocksConsistently) {
  EXPECT_EQ(tree_.modules[0].fqn, "");
  for (uint32_t i = 1; i < tree_.modules.size(); ++i) {
    const Module& parent = tree_.modules[tree_.modules[i].parent];
    EXPECT_LT(tree_.modules[i].parent, i);
    EXPECT_EQ(std::count(parent.children.begin(), parent.children.end(), i), 1);
    EXPECT_EQ(tree_.find(tree_.modules[i].fqn), &tree_.modules[i]);
  }
  EXPECT_EQ(tree_.find("no.such.module"), nullptr);
  EXPECT_EQ(static_cast<int64_t>(tree_.blocks.size()), config_.layers);
  EXPECT_EQ(tree_.subtree_parameters(0).size(), tree_.parameters.size());
  // Every parameter is in a block or outside all of them.
  size_t inside = 0;
  for (const uint32_t block : tree_.blocks) {
    inside += tree_.subtree_parameters(block).size();
  }
  EXPECT_LT(inside, tree_.parameters.size());
}

INSTANTIATE_TEST_SUITE_P(Transformers,
                         ModuleTreeTest,
                         testing::Values("llama-defaults",
                                         "llama-untied",
                                         "llama-tied-gqa",
                                         "llama-biases",
                                         "llama-head-dim",
                                         "llama-rope-flat",
                                         "llama-rope-nested",
                                         "gpt2-defaults",
                                         "gpt2-tied",
                                         "gpt2-untied-inner",
                                         "gpt2-mapped-names",
                                         "mlp-untied",
                                         "mlp-tied",
                                         "mistral-small",
                                         "qwen2-small",
                                         "qwen3-small",
                                         "gemma3-small",
                                         "phi3-small",
                                         "opt-small",
                                         "opt-post-norm"),
                         [](const auto& each) { return test::case_name(each.param); });

TEST(ModuleTreeOwnModelTest, MlpHasTheDocumentedModules) {
  const ModuleTree tree = module_tree(parse_model_config(
      R"({"model_type": "mlp", "vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 2})",
      "config.json"));
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& parameter : tree.parameters) {
    shapes[parameter.fqn] = parameter.shape;
  }
  const std::map<std::string, std::vector<int64_t>> expected{
      {"embed_tokens.weight", {10, 4}}, {"layers.0.fc1.weight", {16, 4}},
      {"layers.0.fc1.bias", {16}},      {"layers.0.fc2.weight", {4, 16}},
      {"layers.0.fc2.bias", {4}},       {"layers.1.fc1.weight", {16, 4}},
      {"layers.1.fc1.bias", {16}},      {"layers.1.fc2.weight", {4, 16}},
      {"layers.1.fc2.bias", {4}},       {"lm_head.weight", {10, 4}}};
  EXPECT_EQ(shapes, expected);
}

}  // namespace
}  // namespace shardlens::plan
