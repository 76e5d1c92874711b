#include "core/edits/plan_edits.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/edits/plan_values.h"
#include "core/model/model_config.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using ::testing::ElementsAre;
using enum PlanKey;

constexpr int64_t kRanks = 8;

ModuleTree tree() {
  return module_tree(load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny"));
}

PlanEdits edits() {
  return {tree(), kRanks, Dialect::kFsdp2};
}

std::vector<std::string> labels(PlanKey key) {
  std::vector<std::string> out;
  for (const PlanEdit& each : edits().values(key)) {
    out.push_back(each.label);
  }
  return out;
}

TEST(PlanEditsTest, EachKeyHasARowAndATitleOfItsOwn) {
  std::set<std::string_view> titles, ids;
  for (int key = 0; key < kPlanKeyCount; ++key) {
    const PlanKeyRow& row = plan_key(static_cast<PlanKey>(key));
    EXPECT_EQ(static_cast<int>(row.key), key);
    EXPECT_TRUE(titles.insert(row.title).second) << row.title;
    EXPECT_TRUE(ids.insert(row.id).second && !row.id.empty()) << row.title;
    EXPECT_FALSE(row.help.empty()) << row.title;
  }
}

TEST(PlanEditsTest, AnEditExcludesThoseThatDecideTheSame) {
  EXPECT_TRUE(exclude_each_other(kUnits, kUnits));
  for (const PlanKey key : {kUnits, kMesh, kReshard, kForwardPrefetch, kBackwardPrefetch}) {
    EXPECT_TRUE(exclude_each_other(kSharding, key)) << plan_key(key).title;
    EXPECT_TRUE(exclude_each_other(key, kSharding)) << plan_key(key).title;
  }
  EXPECT_TRUE(exclude_each_other(kDialect, kBackwardPrefetch));
  EXPECT_FALSE(exclude_each_other(kUnits, kReshard));
  EXPECT_FALSE(exclude_each_other(kSharding, kCheckpoints));
  EXPECT_FALSE(exclude_each_other(kForwardPrefetch, kBackwardPrefetch));
}

// Once an edit is made it holds, and the plan can be written to a file. An edit of one key leaves
// those of others.
TEST(PlanEditsTest, EveryValueHoldsOnceApplied) {
  const std::vector<PlanKey> keys{kSharding,  kUnits,   kForwardPrefetch, kBackwardPrefetch,
                                  kPrecision, kDialect, kLayout};
  for (const PlanKey key : keys) {
    for (const PlanEdit& first : edits().values(key)) {
      Plan plan = strategy_plan("full_shard", tree());
      first.apply(plan);
      EXPECT_TRUE(first.holds(plan)) << first.title;
      EXPECT_EQ(parse_plan(to_json(plan), plan.source), plan) << first.title;
      for (const PlanKey other : keys) {
        for (const PlanEdit& second : edits().values(other)) {
          Plan both = plan;
          second.apply(both);
          EXPECT_TRUE(second.holds(both)) << first.title << "; " << second.title;
          EXPECT_TRUE(exclude_each_other(key, other) || first.holds(both))
              << first.title << "; " << second.title;
        }
      }
    }
  }
}

// The keys that are the same for all units. Each has a value that strategies use.
TEST(PlanEditsTest, EverySettingHoldsOnceApplied) {
  const Plan usual = strategy_plan("full_shard", tree());
  for (const PlanKey key : {kReplicas,
                            kContext,
                            kTensor,
                            kExpert,
                            kSequenceParallel,
                            kLossParallel,
                            kContextMethod,
                            kCheckpoints,
                            kSaves,
                            kOffload,
                            kOptimizerInBackward,
                            kReshardInBackward,
                            kGatherDtype,
                            kAllReduces,
                            kCommunicators,
                            kReductionInputs,
                            kLimit,
                            kViews,
                            kDivideFactor,
                            kBuckets,
                            kUnusedParameters,
                            kStaticGraph,
                            kBucketViews,
                            kExpertDispatch,
                            kOutputDtype,
                            kBufferDtype,
                            kCastInputs}) {
    const std::vector<PlanEdit> values = edits().values(key);
    EXPECT_GE(values.size(), 2U) << plan_key(key).title;
    EXPECT_TRUE(values.front().holds(usual)) << plan_key(key).title;
    for (const PlanEdit& each : values) {
      Plan plan = usual;
      each.apply(plan);
      EXPECT_TRUE(each.holds(plan)) << each.title;
      EXPECT_EQ(parse_plan(to_json(plan), plan.source), plan) << each.title;
      EXPECT_EQ(std::ranges::count_if(values, [&](const PlanEdit& v) { return v.holds(plan); }), 1)
          << each.title;
      values.front().apply(plan);
      EXPECT_TRUE(values.front().holds(plan)) << each.title;
    }
  }
}

// A unit's own value would hide the plan's.
TEST(PlanEditsTest, ASettingIsThatOfAllUnits) {
  Plan plan = strategy_plan("full_shard", tree());
  plan.units.front().cpu_offload = true;
  const std::vector<PlanEdit> values = edits().values(kOffload);
  EXPECT_FALSE(values.front().holds(plan));
  values.front().apply(plan);
  EXPECT_TRUE(values.front().holds(plan));
  EXPECT_EQ(plan.units.front().cpu_offload, std::nullopt);
}

TEST(PlanEditsTest, ValuesOfThePlan) {
  EXPECT_THAT(labels(kUnits), ElementsAre("one block a unit", "2 blocks a unit",
                                          "the model as one unit"));  // it has three blocks
  EXPECT_THAT(labels(kForwardPrefetch), ElementsAre("none", "the next unit", "the next 2 units",
                                                    "the next 3 units", "the next 4 units"));
  EXPECT_THAT(labels(kSharding), ElementsAre("full shard", "shard grad op", "no shard",
                                             "hybrid: 2 replicas", "kept over 4 ranks"));
  EXPECT_EQ(mesh_label(1, 8), "sharded over 8 ranks");
  EXPECT_EQ(mesh_label(2, 4), "2 replicas of 4 shards");
  EXPECT_EQ(mesh_label(8, 1), "not sharded");
}

// A model that is stored in bf16 has no fp32 copies unless the plan says so.
TEST(PlanEditsTest, PrecisionsAreNamedByTheStoredDtype) {
  EXPECT_THAT(labels(kPrecision),
              ElementsAre("fp32", "bf16, reduced in fp32", "bf16, gradients too",
                          "fp16, reduced in fp32", "bf16, no fp32 copies"));
  ModuleTree narrow = tree();
  for (Parameter& parameter : narrow.parameters) {
    parameter.dtype = DType::kBF16;
  }
  const std::vector<PlanEdit> values =
      PlanEdits(narrow, kRanks, Dialect::kFsdp2).values(kPrecision);
  ASSERT_EQ(values.size(), 5U);
  EXPECT_EQ(values.front().label, "bf16, no fp32 copies");
  EXPECT_TRUE(values.front().holds(Plan{}));
  EXPECT_EQ(values.back().label, "fp32");
  Plan wide = strategy_plan("full_shard", narrow);
  values.back().apply(wide);
  EXPECT_EQ(resolve(wide, narrow, kRanks).master_dtype(1), DType::kF32);
}

// Lists name units, which other units do not have: the plan would be refused.
TEST(PlanEditsTest, OtherUnitsDropPrefetchLists) {
  for (const PlanEdit& each : edits().values(kUnits)) {
    Plan plan = parse_plan(R"({"version": 1,
      "units": [{"modules": "model.layers.*.mlp"}, {"modules": ""}],
      "forward_prefetch": {"model.layers.0.mlp": ["model.layers.1.mlp"]},
      "backward_prefetch": {"model.layers.1.mlp": ["model.layers.0.mlp"]}})",
                           "plan.json");
    each.apply(plan);
    EXPECT_NO_THROW((void)resolve(plan, tree(), kRanks)) << each.title;
    EXPECT_TRUE(each.holds(plan)) << each.title;
  }
}

// A plan with lists has other prefetch than any of the values, until one is chosen.
TEST(PlanEditsTest, ListsAreNoValueOfPrefetch) {
  Plan plan = strategy_plan("full_shard", tree());
  plan.forward_prefetch_lists["model.layers.0"] = {"model.layers.1"};
  plan.backward_prefetch_lists["model.layers.2"] = {"model.layers.0"};
  for (const PlanKey key : {kForwardPrefetch, kBackwardPrefetch}) {
    for (const PlanEdit& each : edits().values(key)) {
      EXPECT_FALSE(each.holds(plan)) << each.title;
      Plan changed = plan;
      each.apply(changed);
      EXPECT_TRUE(each.holds(changed)) << each.title;
    }
  }
}

TEST(PlanEditsTest, EditsOfTheStepLeaveThePlan) {
  StepSettings step{.batch = 4, .accumulate = 2};
  const PlanEdit halves = edits().microbatches(2, 4), last = edits().sync_last_microbatch();
  EXPECT_EQ(halves.apply, nullptr);
  EXPECT_EQ(last.apply, nullptr);
  halves.apply_to_step(step);
  last.apply_to_step(step);
  EXPECT_EQ(step.batch, 2);
  EXPECT_EQ(step.accumulate, 4);
  EXPECT_FALSE(step.sync_every_microbatch);
}

}  // namespace
}  // namespace shardlens::plan
