// What a plan says before anything runs, worked by hand for a model of linear layers.
#include "core/schedule/planned/plan_lints.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model/step_workload.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/tree/module_tree.h"

namespace shardlens::schedule::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::vector<PlanLint> lints(const plan::ModelConfig& config, const std::string& keys, int world) {
  const plan::ResolvedPlan plan =
      plan::resolve(plan::parse_plan(R"({"version": 1)" + keys + "}", "plan.json"),
                    plan::module_tree(config), world);
  const PlannedStep step =
      planned_step(plan::step_workload(config, plan, {.batch = 1, .seq = 8}), plan, 3, 1, true);
  return plan_lints(plan, step);
}

std::vector<PlanLint> lints(const std::string& model, const std::string& keys, int world) {
  return lints(plan::load_model_config(std::string(SHARDLENS_TEST_DATA) + "/" + model), keys,
               world);
}

constexpr const char* kUnits =
    R"(, "layout": "per_parameter", "units": [{"modules": "model.layers.*"}, {"modules": ""}])";

TEST(PlanLintsTest, ARootThatIsFreedAfterForward) {
  const std::string root_freed =
      R"(, "layout": "per_parameter", "reshard_after_forward": true,
         "units": [{"modules": "model.layers.*"}, {"modules": "", "reshard_after_forward": true}])";
  const auto found = lints("llama-tiny", root_freed, 2);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, PlanLintKind::kRootGatheredAgain);
  EXPECT_EQ(found[0].unit, "");
  EXPECT_THAT(found[0].evidence, HasSubstr("gathered 2 times in a step of 1 forward"));
  EXPECT_THAT(std::string(remedy_of(found[0].kind)), HasSubstr("reshard_after_forward=False"));
}

TEST(PlanLintsTest, OrdinaryPlansHaveNone) {
  EXPECT_THAT(lints("llama-tiny", kUnits, 2), IsEmpty());
  EXPECT_THAT(lints("llama-tiny", kUnits, 1), IsEmpty());
}

// fc1 is [257, 130] and fc2 [130, 257], both with biases. The larger of two parts has 129 * 130 +
// 129
// + 65 * 257 + 65 floats, 134676 bytes, in each of three layers. That of the root is short.
TEST(PlanLintsTest, PartsThatAreNoMultipleOfSixteenBytes) {
  const plan::ModelConfig config = plan::parse_model_config(
      R"({"model_type": "mlp", "vocab_size": 96, "hidden_size": 130, "num_hidden_layers": 3,
          "intermediate_size": 257})",
      "config.json");
  const std::string units =
      R"(, "layout": "per_parameter", "units": [{"modules": "layers.*"}, {"modules": ""}])";
  const auto found = lints(config, units, 2);
  ASSERT_EQ(found.size(), 2U);
  for (const PlanLint& each : found) {
    EXPECT_EQ(each.kind, PlanLintKind::kUnalignedMessages);
    EXPECT_EQ(each.units, 3);
  }
  EXPECT_EQ(found[0].unit, "layers.0");
  EXPECT_EQ(
      found[0].evidence,
      "a rank's part of the all-gather is 134676 bytes, 4 more than a multiple of 16, because "
      "of layers.0.fc1.weight");
  EXPECT_THAT(found[1].evidence, HasSubstr("reduce-scatter is 134676 bytes"));
  EXPECT_THAT(lints(config, units, 8), IsEmpty());  // each part is short
}

}  // namespace
}  // namespace shardlens::schedule::test
