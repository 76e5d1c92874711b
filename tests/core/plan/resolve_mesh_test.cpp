// The mesh of a resolved plan and its groups.
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
  EXPECT_EQ(plan.mesh.axes(),
            (std::vector<mesh::Axis>{{"replicate", 2}, {"shard", 4}, {"context", 2}}));
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

}  // namespace
}  // namespace shardlens::plan
