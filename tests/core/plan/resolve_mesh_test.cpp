// The mesh of a resolved plan and its groups.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/mesh/mesh.h"
#include "tests/core/plan/resolved.h"
#include "tests/support/message_of.h"

namespace shardlens::plan {
namespace {

using test::error_of;
using test::kBlocksAndRoot;
using test::llama;
using test::resolved;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ResolveMeshTest, ImpossibleMeshesAreRejected) {
  const ModuleTree tree = llama();
  EXPECT_THAT(
      error_of(kBlocksAndRoot, 8, tree, R"(, "mesh": {"replicate": 3, "shard": 2})"),
      HasSubstr("plan.json#/mesh: replicate 3 x shard 2 = 6 ranks, but the world size is 8"));
  EXPECT_THAT(error_of(kBlocksAndRoot, 8, tree, R"(, "mesh": {"replicate": 3})"),
              HasSubstr("plan.json#/mesh"));
  EXPECT_THAT(error_of(kBlocksAndRoot, 8, tree, R"(, "mesh": {"shard": 4})"),
              AllOf(HasSubstr("plan.json#/mesh"), HasSubstr("expected replicate 2")));
  EXPECT_THAT(error_of(kBlocksAndRoot, 0, tree), HasSubstr("world size 0"));
  EXPECT_EQ(resolved(kBlocksAndRoot, 8, tree, R"(, "mesh": {"replicate": 2})").shards(), 4);
  EXPECT_EQ(resolved(kBlocksAndRoot, 8, tree, R"(, "mesh": {"shard": 1})").replicas(), 8);
  EXPECT_EQ(resolved(kBlocksAndRoot, 1, tree).shards(), 1);
}

TEST(ResolveMeshTest, SubMeshesMustDivideTheShardAxis) {
  const ModuleTree tree = llama();
  const auto reshard = [&](const std::string& value, int64_t world) {
    return resolved(kBlocksAndRoot, world, tree, R"(, "reshard_after_forward": )" + value)
        .units[1]
        .reshard_after_forward;
  };
  EXPECT_EQ(reshard("2", 8), (Reshard{Reshard::Kind::kSubMesh, 2}));
  EXPECT_EQ(reshard("8", 8).kind, Reshard::Kind::kYes);
  EXPECT_EQ(reshard("1", 8).kind, Reshard::Kind::kNo);
  EXPECT_THAT(error_of(kBlocksAndRoot, 8, tree, R"(, "reshard_after_forward": 3)"),
              AllOf(HasSubstr("plan.json#/reshard_after_forward"),
                    HasSubstr("divisor of the size of the shard axis, 8")));
  EXPECT_THAT(
      error_of(R"([{"modules": "model.layers.*", "reshard_after_forward": 3}, {"modules": ""}])", 8,
               tree),
      HasSubstr("plan.json#/units/0/reshard_after_forward"));
}

TEST(ResolveMeshTest, EachSizeOfSubMeshesIsAGroup) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(
      R"([{"modules": ""}, {"modules": "model.layers.0", "reshard_after_forward": 2},
          {"modules": ["model.layers.1", "model.layers.2"], "reshard_after_forward": 4},
          {"modules": "model.layers.3", "reshard_after_forward": 2}])",
      16, tree, R"(, "mesh": {"replicate": 2}, "separate_reduce_scatter_group": true)");
  EXPECT_EQ(plan.groups, (std::vector<mesh::Group>{
                             {.name = "shard", .size = 8, .stride = 1},
                             {.name = "replicate", .size = 2, .stride = 8},
                             {.name = "reduce_scatter", .size = 8, .stride = 1, .separate = true},
                             {.name = "sub_shard2", .size = 2, .stride = 1},
                             {.name = "sub_shard4", .size = 4, .stride = 1}}));
  std::vector<int> kept;
  for (const Unit& unit : plan.units) {
    EXPECT_EQ(unit.gather, kShardGroup);
    EXPECT_EQ(unit.reduce, 2);
    EXPECT_EQ(unit.replicate, kReplicateGroup);
    kept.push_back(unit.kept);
  }
  EXPECT_THAT(kept, ElementsAre(mesh::kNoGroup, 3, 4, 3));
}

// Ranks 0 to 15 as 2 replicas of 4 shards of contexts of 2 ranks.
TEST(ResolveMeshTest, ParametersAreShardedOverContextsToo) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(kBlocksAndRoot, 16, tree,
                                     R"(, "mesh": {"replicate": 2, "context": 2},
                                        "reshard_after_forward": 4)");
  EXPECT_EQ(plan.mesh.axes(), (std::vector<mesh::Axis>{
                                  {"replicate", 2}, {"shard", 4}, {"context", 2}, {"tensor", 1}}));
  EXPECT_EQ(plan.groups,
            (std::vector<mesh::Group>{{.name = "shard", .size = 8, .stride = 1},
                                      {.name = "replicate", .size = 2, .stride = 8},
                                      {.name = "context", .size = 2, .stride = 1},
                                      {.name = "sub_shard4", .size = 4, .stride = 1}}));
  EXPECT_EQ(plan.layout(1).ranks(), 8);
  EXPECT_THAT(error_of(kBlocksAndRoot, 6, tree, R"(, "mesh": {"shard": 2, "context": 2})"),
              HasSubstr("plan.json#/mesh: replicate 1 x shard 2 x context 2 = 4 ranks, but the "
                        "world size is 6; expected three factors"));
  EXPECT_THAT(error_of(kBlocksAndRoot, 8, tree, R"(, "mesh": {"shard": 2, "context": 2})"),
              HasSubstr("with shard 2 expected replicate 2"));
  EXPECT_THAT(error_of(kBlocksAndRoot, 2, tree, R"(, "mesh": {"context": 4})"),
              HasSubstr("but the world size is 2"));
  EXPECT_THAT(test::message_of<InputError>([&] { require_engine_support(plan); }),
              HasSubstr("plan.json#/mesh/context: context 2 is not run by the engine yet"));
}

// Ranks 0 to 15 as 2 replicas of 4 shards of 2 parts of each operator; the experts of a replica's
// 8 ranks are divided over 4 and sharded over 2.
TEST(ResolveMeshTest, ExpertsHaveAMeshOfTheirOwn) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(
      R"([{"modules": ""}, {"modules": "model.layers.*"},
          {"modules": "model.layers.0.mlp.up_proj", "reshard_after_forward": 2},
          {"modules": "model.layers.1.mlp.up_proj", "reshard_after_forward": 4,
           "groups": [{"mesh": "expert"}]}])",
      32, tree,
      R"(, "mesh": {"replicate": 2, "tensor": 2, "expert": 2}, "layout": "per_parameter",
           "tensor_parallel": {"model.layers.*.mlp.down_proj": "row", "lm_head": "column"},
           "separate_reduce_scatter_group": true)");
  EXPECT_EQ(plan.expert_mesh.axes(),
            (std::vector<mesh::Axis>{{"replicate", 2}, {"expert_shard", 8}, {"expert", 2}}));
  EXPECT_EQ(plan.groups,
            (std::vector<mesh::Group>{
                {.name = "shard", .size = 8, .stride = 2},
                {.name = "replicate", .size = 2, .stride = 16},
                {.name = "tensor", .size = 2, .stride = 1},
                {.name = "expert_shard", .size = 8, .stride = 2},
                {.name = "expert", .size = 2, .stride = 1},
                {.name = "reduce_scatter", .size = 8, .stride = 2, .separate = true},
                {.name = "expert_reduce_scatter", .size = 8, .stride = 2, .separate = true},
                {.name = "sub_shard2", .size = 2, .stride = 2},
                {.name = "expert_sub_shard4", .size = 4, .stride = 2}}));
  const Unit& dense = plan.units[2];
  const Unit& experts = *std::ranges::find(plan.units, "model.layers.1.mlp.up_proj", &Unit::fqn);
  EXPECT_EQ(dense.fqn, "model.layers.0.mlp.up_proj");
  EXPECT_EQ(plan.groups[dense.gather].name, "shard");
  EXPECT_EQ(plan.groups[dense.kept].name, "sub_shard2");
  EXPECT_EQ(plan.groups[experts.gather].name, "expert_shard");
  EXPECT_EQ(plan.groups[experts.reduce].name, "expert_reduce_scatter");
  EXPECT_EQ(plan.groups[experts.kept].name, "expert_sub_shard4");
  EXPECT_EQ(plan.groups[experts.replicate].name, "replicate");
  const auto local = [&](const std::string& fqn) {
    const auto found = std::ranges::find(tree.parameters, fqn, &Parameter::fqn);
    return plan.local_shape(static_cast<uint32_t>(found - tree.parameters.begin()));
  };
  const auto whole = [&](const std::string& fqn) {
    return std::ranges::find(tree.parameters, fqn, &Parameter::fqn)->shape;
  };
  // The weight of a Linear is [output features, input features].
  const std::string up = "model.layers.1.mlp.up_proj.weight",
                    down = "model.layers.1.mlp.down_proj.weight";
  EXPECT_THAT(local(up), ElementsAre(whole(up)[0] / 2, whole(up)[1]));
  EXPECT_THAT(local(down), ElementsAre(whole(down)[0], whole(down)[1] / 2));
  EXPECT_THAT(local("lm_head.weight"),
              ElementsAre(whole("lm_head.weight")[0] / 2, whole("lm_head.weight")[1]));
}

TEST(ResolveMeshTest, AUnitHasAGroupForEachMesh) {
  const ModuleTree tree = llama();
  const ResolvedPlan plan = resolved(
      R"([{"modules": "model.layers.*", "groups": [
             {"parameters": ["**.mlp.down_proj.*"], "mesh": "expert", "shard_dim": 1},
             {"parameters": ["**.mlp.**"], "mesh": "expert"}, {}]},
          {"modules": "lm_head"}, {"modules": ""}])",
      8, tree,
      R"(, "layout": "per_parameter", "mesh": {"expert": 4},
          "forward_prefetch": {"model.layers.0": ["model.layers.1"]})");
  ASSERT_EQ(plan.units.size(), 2 + 2 * tree.blocks.size());
  for (UnitId id = 1; id + 1 < plan.units.size(); id += 2) {
    const Unit &dense = plan.units[id], &expert = plan.units[id + 1];
    EXPECT_EQ(expert.fqn, dense.fqn + " [expert]");
    EXPECT_EQ(expert.modules, dense.modules);
    EXPECT_THAT((std::vector{dense.group, dense.groups, expert.group, expert.groups}),
                ElementsAre(0U, 2U, 1U, 2U));
    EXPECT_THAT((std::vector{dense.parent, expert.parent}), ElementsAre(0U, id));
    EXPECT_EQ(plan.groups[dense.gather].size, 8);
    EXPECT_EQ(plan.groups[expert.gather].size, 2);
    EXPECT_EQ(plan.groups[expert.gather].stride, 4);
    for (const uint32_t parameter : dense.parameters) {
      EXPECT_EQ(tree.parameters[parameter].fqn.find(".mlp."), std::string::npos);
    }
    ASSERT_EQ(expert.parameters.size(), 3U);  // gate, up and down
    for (const uint32_t parameter : expert.parameters) {
      const bool down = tree.parameters[parameter].fqn.find("down") != std::string::npos;
      EXPECT_EQ(plan.placements[parameter].shard_dim, down ? 1 : 0);
      EXPECT_EQ(plan.groups[plan.placements[parameter].group].size, 4);
    }
  }
  // Lists name units, and are those of their first groups.
  EXPECT_THAT(plan.units[1].forward_prefetch, ElementsAre(3U));
  EXPECT_TRUE(plan.units[2].forward_prefetch.empty());
  EXPECT_EQ(plan.units.back().groups, 1U);
  EXPECT_EQ(plan.units.back().parent, 0U);
}

TEST(ResolveMeshTest, ParametersOfModulesNamedExpertsAreAGroupOfTheirOwn) {
  const ModuleTree tree = test::tree_of("mixtral-tiny");
  const std::string blocks = R"([{"modules": "model.layers.*"}, {"modules": ""}])";
  const auto named = [](const Parameter& each) {
    return each.fqn.find(".experts.") != std::string::npos;
  };
  const ResolvedPlan plan = resolved(blocks, 4, tree, R"(, "mesh": {"expert": 2})");
  ASSERT_EQ(plan.units.size(), 1 + 2 * tree.blocks.size());
  for (const Unit& unit : plan.units) {
    EXPECT_EQ(unit.expert, unit.group == 1) << unit.fqn;
    for (const uint32_t parameter : unit.parameters) {
      EXPECT_EQ(named(tree.parameters[parameter]), unit.expert) << tree.parameters[parameter].fqn;
    }
  }
  EXPECT_EQ(resolved(blocks, 4, tree).units.size(), 1 + tree.blocks.size());
}

TEST(ResolveMeshTest, NoShardLeavesTensorParallelism) {
  const ResolvedPlan plan =
      resolved(kBlocksAndRoot, 8, llama(), R"(, "mesh": {"shard": 1, "tensor": 2})");
  EXPECT_EQ(plan.replicas(), 4);
  EXPECT_EQ(plan.groups[kReplicateGroup].stride, 2);
  EXPECT_EQ(plan.mesh.size("tensor"), 2);
}

TEST(ResolveMeshTest, ImpossibleDivisionsAreRefused) {
  const ModuleTree tree = llama();
  const auto refused = [&](const std::string& units, const std::string& more) {
    return error_of(units, 8, tree, R"(, "layout": "per_parameter")" + more);
  };
  EXPECT_THAT(refused(kBlocksAndRoot, R"(, "mesh": {"shard": 3, "tensor": 2})"),
              HasSubstr("plan.json#/mesh: replicate 1 x shard 3 x tensor 2 = 6 ranks, but the "
                        "world size is 8"));
  EXPECT_THAT(refused(kBlocksAndRoot, R"(, "mesh": {"replicate": 2, "expert": 3})"),
              HasSubstr("plan.json#/mesh/expert: expert 3 does not divide the 4 ranks of a "
                        "replica; expected one of 1, 2, 4"));
  EXPECT_THAT(refused(kBlocksAndRoot, R"(, "tensor_parallel": {"lm_head": "row"})"),
              HasSubstr("plan.json#/tensor_parallel: the mesh has no axis along which modules are "
                        "divided"));
  const std::string tensor = R"(, "mesh": {"tensor": 2}, "tensor_parallel": )";
  EXPECT_THAT(refused(kBlocksAndRoot, tensor + R"({"lm_haed": "row"})"),
              HasSubstr("plan.json#/tensor_parallel/lm_haed: glob 'lm_haed' matches no module"));
  EXPECT_THAT(refused(kBlocksAndRoot, tensor + R"({"lm_head": "rows"})"),
              HasSubstr("did you mean 'row'?"));
  EXPECT_THAT(refused(kBlocksAndRoot, tensor + R"({"lm_head.weight": 2})"),
              HasSubstr("has no dimension 2 to divide"));
  EXPECT_THAT(refused(kBlocksAndRoot, tensor + R"({"lm_head": "row", "lm_head.weight": 0})"),
              HasSubstr("lm_head.weight: parameter 'lm_head.weight' is divided over tensor along "
                        "dimension 1 already"));
  const std::string of_experts = R"([{"modules": ""}, {"modules": "lm_head", "groups": )";
  EXPECT_THAT(refused(of_experts + R"([{"parameters": ["*.bias"]}]}])", ""),
              HasSubstr("plan.json#/units/1/groups/0/parameters/0: glob '*.bias' matches no "
                        "parameter"));
  EXPECT_THAT(refused(of_experts + R"([{"parameters": ["model.norm.*"]}]}])", ""),
              HasSubstr("plan.json#/units/1/groups: parameter 'lm_head.weight' of the unit is in "
                        "no group"));
  EXPECT_THAT(refused(of_experts + R"([{}, {}]}])", ""),
              HasSubstr("plan.json#/units/1/groups/1: the group before it has all parameters"));
  EXPECT_THAT(refused(of_experts + R"([{"shard_dim": 2}]}])", ""),
              HasSubstr("plan.json#/units/1/groups/0/shard_dim: parameter 'lm_head.weight'"));
  EXPECT_THAT(error_of(of_experts + R"([{"shard_dim": 1}]}])", 8, tree),
              HasSubstr("layout flat shards no dimension"));
  EXPECT_THAT(refused(of_experts + R"([{"mesh": "experts"}]}])", ""),
              HasSubstr("plan.json#/units/1/groups/0/mesh: expected one of 'dense', 'expert'"));
  const ResolvedPlan plan = resolved(kBlocksAndRoot, 8, tree, R"(, "mesh": {"expert": 2})");
  EXPECT_THAT(test::message_of<InputError>([&] { require_engine_support(plan); }),
              HasSubstr("plan.json#/mesh/expert: expert 2 is not run by the engine yet"));
}

TEST(ResolveMeshTest, SizesOfTheMeshByName) {
  const MeshSizes of{.replicate = 2, .shard = 8, .tensor = 2};
  EXPECT_EQ(with_mesh(of, ""), of);
  EXPECT_EQ(with_mesh(of, "1x4"), (MeshSizes{.replicate = 1, .shard = 4, .tensor = 2}));
  EXPECT_EQ(with_mesh({}, "shard=4,tensor=2,expert=8"),
            (MeshSizes{.shard = 4, .tensor = 2, .expert = 8}));
  EXPECT_EQ(with_mesh(of, "context=2"),
            (MeshSizes{.replicate = 2, .shard = 8, .context = 2, .tensor = 2}));
  const auto refused = [](const std::string& text) {
    return test::message_of<UsageError>([&] { (void)with_mesh({}, text); });
  };
  EXPECT_THAT(refused("tenor=2"), HasSubstr("did you mean 'tensor'?"));
  EXPECT_THAT(refused("tensor=0"), HasSubstr("expected a size of 1 to 65536 for 'tensor'"));
  EXPECT_THAT(refused("tensor=2,tensor=2"), HasSubstr("expected one size for 'tensor'"));
  EXPECT_THAT(refused("shard=2,"), HasSubstr("found ''"));
  EXPECT_THAT(refused("8"), HasSubstr("expected RxS"));
}

}  // namespace
}  // namespace shardlens::plan
