#include "core/edits/mesh_values.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/edits/module_values.h"
#include "core/mesh/mesh.h"
#include "core/model/model_config.h"
#include "core/plan/plan_mesh_json.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

ModuleTree model() {
  return module_tree(load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny"));
}

// replicate, shard, context, tensor
MeshSizes sizes(int64_t replicate, int64_t shard, int64_t context, int64_t tensor) {
  return {.replicate = replicate, .shard = shard, .context = context, .tensor = tensor};
}

TEST(MeshValuesTest, SizesThatAPlanLeavesOutAreThoseOfResolve) {
  const ModuleTree tree = model();
  for (const MeshSizes& mesh : {MeshSizes{}, MeshSizes{.shard = 1}, MeshSizes{.replicate = 2},
                                MeshSizes{.tensor = 2}, MeshSizes{.replicate = 2, .context = 2},
                                MeshSizes{.shard = 2, .context = 2, .tensor = 2}}) {
    Plan plan = strategy_plan("full_shard", tree);
    plan.mesh = mesh;
    EXPECT_EQ(settled_mesh(mesh, 8), sizes_of(resolve(plan, tree, 8)));
  }
}

// The ranks stay: what an axis takes, `shard` gives, and replicas where that is not enough.
TEST(MeshValuesTest, AnotherDegree) {
  const auto changed = [](const MeshSizes& mesh, std::string_view axis, int64_t degree) {
    return settled_mesh(with_degree(mesh, axis, degree, 16), 16);
  };
  EXPECT_EQ(changed({}, mesh::kTensor, 4), sizes(1, 4, 1, 4));
  EXPECT_EQ(changed({.tensor = 4}, mesh::kContext, 2), sizes(1, 2, 2, 4));
  EXPECT_EQ(changed({.tensor = 4}, mesh::kTensor, 1), sizes(1, 16, 1, 1));
  EXPECT_EQ(changed({.replicate = 2}, mesh::kTensor, 2), sizes(2, 4, 1, 2));
  EXPECT_EQ(changed({.replicate = 4}, mesh::kTensor, 8), sizes(2, 1, 1, 8));
  EXPECT_EQ(changed({.replicate = 2, .tensor = 2}, mesh::kReplicate, 8), sizes(8, 1, 1, 2));
  EXPECT_EQ(changed({.tensor = 2}, mesh::kShard, 2), sizes(4, 2, 1, 2));
  // A plan that shards nothing still shards nothing.
  EXPECT_EQ(changed({.shard = 1}, mesh::kTensor, 2), sizes(8, 1, 1, 2));
  EXPECT_EQ(changed({.shard = 1}, mesh::kContext, 2), sizes(8, 1, 2, 1));
  EXPECT_EQ(changed({}, mesh::kExpert, 4).expert, 4);
}

TEST(MeshValuesTest, SplitAndMergeAreTheReverseOfEachOther) {
  const MeshSizes split = with_moved({}, mesh::kShard, mesh::kTensor, 2, 8);
  EXPECT_EQ(settled_mesh(split, 8), sizes(1, 4, 1, 2));
  EXPECT_EQ(with_moved(split, mesh::kTensor, mesh::kShard, 2, 8), MeshSizes{});
  EXPECT_EQ(settled_mesh(with_moved(split, mesh::kShard, mesh::kReplicate, 4, 8), 8),
            sizes(4, 1, 1, 2));
  EXPECT_EQ(settled_mesh(with_moved({.shard = 1}, mesh::kReplicate, mesh::kShard, 8, 8), 8),
            sizes(1, 8, 1, 1));
}

// Whether a module runs again in backward, is trained, and what its unit has instead of the plan's.
TEST(ModuleSettingsTest, EveryValueOfAModuleHoldsOnceApplied) {
  const ModuleTree tree = model();
  const std::vector<std::string> modules{"model.layers.1"};
  for (const PlanKey key :
       {PlanKey::kCheckpoints, PlanKey::kFrozen, PlanKey::kOffload, PlanKey::kOptimizerInBackward,
        PlanKey::kReshardInBackward, PlanKey::kAllReduces, PlanKey::kUnshardInBackward}) {
    const std::vector<PlanEdit> values = module_values(key, tree, 8, modules);
    Plan plan = strategy_plan("full_shard", tree);
    EXPECT_TRUE(values.front().holds(plan)) << plan_key(key).title;
    for (const PlanEdit& each : values) {
      each.apply(plan);
      // A backward that needs its parameters cannot do without them.
      const bool refused = key == PlanKey::kUnshardInBackward && each.label == "not gathered";
      EXPECT_EQ(each.holds(plan), !refused) << each.title;
      EXPECT_EQ(parse_plan(to_json(plan), plan.source), plan) << each.title;
    }
  }
}

TEST(ModuleSettingsTest, CheckpointsAreAList) {
  const ModuleTree tree = model();
  Plan plan = strategy_plan("full_shard", tree);
  plan.activation_checkpointing = {"model.layers.*"};
  module_values(PlanKey::kCheckpoints, tree, 8, {"model.layers.1"}).front().apply(plan);
  EXPECT_EQ(plan.activation_checkpointing,
            (std::vector<std::string>{"model.layers.0", "model.layers.2", "model.layers.3"}));
  module_values(PlanKey::kFrozen, tree, 8, {"model.layers.0", "model.norm"}).back().apply(plan);
  module_values(PlanKey::kFrozen, tree, 8, {"model.norm"}).front().apply(plan);
  for (const Parameter& each : resolve(plan, tree, 8).tree.parameters) {
    EXPECT_EQ(each.requires_grad, !each.fqn.starts_with("model.layers.0.")) << each.fqn;
  }
}

}  // namespace
}  // namespace shardlens::plan
