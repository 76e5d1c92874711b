#include "core/plan/strategy_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model/model_config.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

ModuleTree tree() {
  return module_tree(load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny"));
}

// As a recorded run has it: every unit listed with its settings.
Plan recorded() {
  return parse_plan(R"({"version": 1, "mesh": {"replicate": 1, "shard": 4},
    "layout": "per_parameter",
    "units": [{"modules": "model.layers.0", "reshard_after_forward": true},
              {"modules": ["model.layers.1", "model.layers.2"], "reshard_after_forward": true,
               "mixed_precision": {"param_dtype": "bf16"}},
              {"modules": "", "reshard_after_forward": false}],
    "forward_prefetch": {"model.layers.0": ["model.layers.1"]},
    "activation_checkpointing": ["model.layers.2"]})",
                    "plan.json");
}

Plan changed(const Plan& plan, const char* strategy) {
  Plan out = with_strategy(plan, strategy, tree());
  out.source = plan.source;
  return out;
}

TEST(StrategyChangeTest, ItsOwnStrategyLeavesThePlanAsItIs) {
  EXPECT_EQ(changed(recorded(), "full_shard"), recorded());
  for (const std::string& strategy : strategy_names()) {
    const Plan plan = strategy_plan(strategy, tree());
    EXPECT_EQ(changed(plan, strategy.c_str()), plan) << strategy;
    const Plan once = changed(recorded(), strategy.c_str());
    EXPECT_EQ(changed(once, strategy.c_str()), once) << strategy;
  }
}

TEST(StrategyChangeTest, MessagesNameTheStrategyThatChangedThePlan) {
  EXPECT_EQ(with_strategy(recorded(), "full_shard", tree()).source, "plan.json");
  EXPECT_EQ(with_strategy(recorded(), "no_shard", tree()).source, "--strategy no_shard");
}

TEST(StrategyChangeTest, OnlyWhatTheStrategySaysChanges) {
  Plan expected = recorded();
  for (UnitEntry& entry : expected.units) {
    entry.reshard_after_forward.reset();
  }
  expected.reshard_after_forward = {Reshard::Kind::kNo, 0};
  EXPECT_EQ(changed(recorded(), "shard_grad_op"), expected);

  expected = recorded();
  expected.mesh.replicate = 2;
  expected.mesh.shard.reset();
  EXPECT_EQ(changed(recorded(), "hybrid_shard"), expected);

  expected.mesh.replicate.reset();
  expected.mesh.shard = 1;
  EXPECT_EQ(changed(recorded(), "no_shard"), expected);
}

TEST(StrategyChangeTest, AMeshOfTheStrategyStays) {
  Plan hybrid = recorded();
  hybrid.mesh.replicate = 4;
  hybrid.mesh.shard = 2;
  EXPECT_EQ(changed(hybrid, "hybrid_shard"), hybrid);
  EXPECT_EQ(changed(hybrid, "shard_grad_op").mesh.replicate, 4);
  EXPECT_EQ(resolve(changed(hybrid, "full_shard"), tree(), 8).shards(), 8);
  Plan replicas = recorded();
  replicas.mesh.replicate = 4;
  replicas.mesh.shard = 1;
  EXPECT_EQ(changed(replicas, "no_shard"), replicas);
  EXPECT_EQ(resolve(changed(replicas, "shard_grad_op"), tree(), 4).shards(), 4);
}

TEST(StrategyChangeTest, ReplicatedUnitsAreOthers) {
  const Plan replicated = changed(recorded(), "replicate");
  EXPECT_EQ(replicated.units, strategy_plan("replicate", tree()).units);
  EXPECT_TRUE(replicated.forward_prefetch_lists.empty());
  EXPECT_EQ(replicated.activation_checkpointing, recorded().activation_checkpointing);
  const Plan back = changed(replicated, "shard_grad_op");
  EXPECT_EQ(back.units, strategy_plan("shard_grad_op", tree()).units);
  EXPECT_EQ(back.reshard_after_forward.kind, Reshard::Kind::kNo);
}

}  // namespace
}  // namespace shardlens::plan
