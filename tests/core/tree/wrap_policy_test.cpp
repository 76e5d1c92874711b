#include "core/tree/wrap_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model/model_config.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/tree/tree_builder.h"

namespace shardlens::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ModuleTree small_llama() {
  return module_tree(load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny"));
}

std::vector<std::string> chosen(const std::string& policy,
                                const ModuleTree& tree,
                                std::vector<bool> ignored = {}) {
  ignored.resize(tree.parameters.size());
  std::vector<std::string> fqns;
  for (const uint32_t module : modules_of_policy(policy, tree, ignored)) {
    fqns.push_back(tree.modules[module].fqn);
  }
  return fqns;
}

ResolvedPlan resolved(const std::string& units, const std::string& more = "") {
  return resolve(parse_plan(R"({"version": 1, "units": )" + units + more + "}", "plan.json"),
                 small_llama(), 2);
}

std::string policy_error_of(const std::string& units) {
  try {
    (void)resolved(units);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> fqns_of(const ResolvedPlan& plan) {
  std::vector<std::string> fqns;
  for (const Unit& unit : plan.units) {
    fqns.push_back(unit.fqn);
  }
  return fqns;
}

// PyTorch's test_wrap: Seq(Linear, Linear, Seq(Linear, Linear)) of Linear(5, 5), at least 40.
TEST(WrapPolicyTest, SizeChoosesWhatPyTorchWraps) {
  TreeBuilder builder("Sequential");
  builder.linear(0, "0", 5, 5, true);
  builder.linear(0, "1", 5, 5, true);
  const uint32_t inner = builder.module(0, "2", "Sequential");
  builder.linear(inner, "0", 5, 5, true);
  builder.linear(inner, "1", 5, 5, true);
  const ModuleTree tree = builder.take();
  EXPECT_THAT(chosen("size:40", tree), ElementsAre("2"));
  EXPECT_THAT(chosen("size:30", tree), ElementsAre("0", "1", "2.0", "2.1"));
  EXPECT_THAT(chosen("size:61", tree), IsEmpty());  // only the root is so large
}

// By hand: a layer has 45,440 parameters, 33,024 of them in its mlp, each of whose three matrices
// has 11,008; embedding and head have 16,384.
TEST(WrapPolicyTest, SizeCountsWhatUnitsBelowDidNotTake) {
  EXPECT_THAT(chosen("size:40000", small_llama()),
              ElementsAre("model.layers.0", "model.layers.1", "model.layers.2", "model.layers.3"));
  // The remaining 12,416 of each layer and the norm's 64 are left to `model`.
  EXPECT_THAT(chosen("size:16384", small_llama()),
              ElementsAre("model", "model.embed_tokens", "model.layers.0.mlp", "model.layers.1.mlp",
                          "model.layers.2.mlp", "model.layers.3.mlp", "lm_head"));
  const ModuleTree tree = small_llama();
  std::vector<bool> ignored(tree.parameters.size());
  ignored[tree.find("lm_head")->parameters.front()] = true;
  EXPECT_THAT(chosen("size:16384", tree, ignored), testing::Not(testing::Contains("lm_head")));
}

TEST(WrapPolicyTest, NothingInsideAttentionIsLookedAt) {
  TreeBuilder builder("Model");
  const uint32_t attention = builder.module(0, "attention", "MultiheadAttention");
  builder.linear(attention, "out_proj", 10, 10, false);
  EXPECT_THAT(chosen("size:50", builder.take()), ElementsAre("attention"));
}

TEST(WrapPolicyTest, ClassIsEveryModuleOfIt) {
  EXPECT_THAT(chosen("class:LlamaMLP", small_llama()),
              ElementsAre("model.layers.0.mlp", "model.layers.1.mlp", "model.layers.2.mlp",
                          "model.layers.3.mlp"));
}

TEST(WrapPolicyTest, PlansTakePoliciesForGlobs) {
  const std::string layers = R"([{"modules": "model.layers.*"}, {"modules": ""}])";
  EXPECT_EQ(fqns_of(resolved(R"([{"modules": "class:LlamaDecoderLayer"}, {"modules": ""}])")),
            fqns_of(resolved(layers)));
  EXPECT_EQ(fqns_of(resolved(R"([{"modules": "size:40000"}, {"modules": ""}])")),
            fqns_of(resolved(layers)));
  // In a list, all of them form one unit.
  EXPECT_EQ(resolved(R"([{"modules": ["class:LlamaMLP"]}, {"modules": ""}])").units.size(), 2U);
  const Plan plan = parse_plan(R"({"version": 1, "units": [{"modules": "class:A"}]})", "a.json");
  EXPECT_EQ(parse_plan(to_json(plan), "a.json"), plan);
}

TEST(WrapPolicyTest, MistakesNameThePlace) {
  EXPECT_THAT(
      policy_error_of(R"([{"modules": "class:LlamaDecoderLayr"}, {"modules": ""}])"),
      AllOf(HasSubstr("plan.json#/units/0/modules: 'class:LlamaDecoderLayr' matches no module: no "
                      "module has this class"),
            HasSubstr("did you mean 'class:LlamaDecoderLayer'?")));
  EXPECT_THAT(policy_error_of(R"([{"modules": "size:100000000"}, {"modules": ""}])"),
              HasSubstr("matches no module: only the root is that large"));
  // A module cannot be wrapped twice.
  EXPECT_THAT(
      policy_error_of(R"([{"modules": "class:LlamaDecoderLayer"}, {"modules": "model.layers.2"},
                           {"modules": ""}])"),
      AllOf(HasSubstr("module 'model.layers.2' is matched by two entries"), HasSubstr("units/0")));
  for (const char* policy : {"class:", "size:", "size:many", "size:-1", "size:0", "size:1e6"}) {
    EXPECT_THAT(policy_error_of(R"([{"modules": ")" + std::string(policy) + R"("}])"),
                AllOf(HasSubstr("plan.json#/units/0/modules"), HasSubstr("expected")))
        << policy;
  }
}

}  // namespace
}  // namespace shardlens::plan
