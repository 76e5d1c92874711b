// The mesh of recorded programs, and how it divides their parameters.
#include "profiler/analysis/recover/recovered_mesh.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/plan/ownership.h"
#include "core/plan/resolve.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {
namespace {

namespace fs = std::filesystem;
using plan::MeshSizes;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Members = std::vector<int64_t>;

trace::Metadata metadata(int64_t world,
                         const std::vector<std::pair<std::string, Members>>& groups) {
  trace::Metadata out;
  out.world_size = world;
  for (const auto& [description, ranks] : groups) {
    out.groups.push_back({"", description, "", ranks, static_cast<int64_t>(ranks.size())});
  }
  return out;
}

TEST(RecoveredMeshTest, ShardsOverAllRanksAreTheDefault) {
  const RecoveredMesh mesh = recover_mesh(metadata(4, {{"default_pg", {0, 1, 2, 3}}}),
                                          {{"", 4, {0, 1, 2, 3}}, {"layers.0", 4, {}}}, 4);
  EXPECT_EQ(mesh.sizes, MeshSizes{});
  EXPECT_EQ(mesh.world_size, 4);
  EXPECT_EQ(mesh.shard, 4);
  EXPECT_THAT(mesh.expert, ElementsAre(false, false));
}

TEST(RecoveredMeshTest, ReplicasAreFurtherApartThanShards) {
  EXPECT_EQ(recover_mesh(metadata(8, {{"mesh_replicate", {0, 4}}, {"mesh_shard", {0, 1, 2, 3}}}),
                         {{"", 4, {0, 1, 2, 3}}}, 4)
                .sizes,
            (MeshSizes{.replicate = 2, .shard = 4}));
  // Replicas next to each other are none of tensor parallelism.
  EXPECT_EQ(recover_mesh(metadata(8, {{"replicate", {0, 1}}, {"shard", {0, 2, 4, 6}}}),
                         {{"", 4, {0, 2, 4, 6}}}, 4)
                .sizes,
            (MeshSizes{.replicate = 2, .shard = 4}));
}

// Ranks between those of a group of shards, whatever the groups are called.
TEST(RecoveredMeshTest, RanksBetweenShardsAreThoseOfTensorParallelism) {
  for (const char* name : {"mesh_tp", "mesh_1", ""}) {
    const RecoveredMesh mesh =
        recover_mesh(metadata(8, {{name, {0, 1}}, {"mesh_dp", {0, 2}}}), {{"", 2, {0, 2}}}, 2);
    EXPECT_EQ(mesh.sizes, (MeshSizes{.replicate = 2, .shard = 2, .tensor = 2})) << name;
    EXPECT_EQ(mesh.world_size, 8);
  }
  // Without the ranks of the groups, their descriptions count.
  EXPECT_EQ(recover_mesh(metadata(4, {{"mesh_tp", {0, 1}}}), {{"", 2, {}}}, 2).sizes,
            (MeshSizes{.replicate = 1, .shard = 2, .tensor = 2}));
}

TEST(RecoveredMeshTest, AContextIsPartOfWhatShards) {
  EXPECT_EQ(recover_mesh(metadata(16, {{"dp_shard_cp", {0, 2, 4, 6, 8, 10, 12, 14}},
                                       {"cp", {0, 2}},
                                       {"tp", {0, 1}}}),
                         {{"", 8, {0, 2, 4, 6, 8, 10, 12, 14}}}, 8)
                .sizes,
            (MeshSizes{.replicate = 1, .shard = 4, .context = 2, .tensor = 2}));
}

TEST(RecoveredMeshTest, UnitsOnOtherRanksAreExperts) {
  const std::vector<UnitRanks> units{{"", 8, {}}, {"layers.0", 8, {}}, {"layers.0.mlp", 2, {}}};
  const RecoveredMesh described = recover_mesh(metadata(8, {{"mesh_ep", {0, 1, 2, 3}}}), units, 8);
  EXPECT_EQ(described.sizes, (MeshSizes{.shard = 8, .expert = 4}));
  EXPECT_THAT(described.expert, ElementsAre(false, false, true));
  EXPECT_EQ(recover_mesh(metadata(8, {}), units, 8).sizes, (MeshSizes{.shard = 8, .expert = 4}));
  // Three of eight ranks divide nothing.
  const RecoveredMesh other = recover_mesh(metadata(8, {}), {{"", 8, {}}, {"layers.0", 3, {}}}, 8);
  EXPECT_EQ(other.sizes, MeshSizes{});
  ASSERT_EQ(other.diagnostics.size(), 1U);
  EXPECT_THAT(other.diagnostics[0].message,
              HasSubstr("'layers.0' is sharded over 3 ranks, and others over 8"));
}

// A damaged trace may have an all-gather whose output is smaller than its input.
TEST(RecoveredMeshTest, UnitsOfUnknownSizeAreNoExperts) {
  const RecoveredMesh mesh =
      recover_mesh(metadata(4, {}), {{"", 4, {0, 1, 2, 3}}, {"layers.0", 0, {0, 2}}}, 4);
  EXPECT_EQ(mesh.sizes, MeshSizes{});
  EXPECT_THAT(mesh.expert, ElementsAre(false, false));
  EXPECT_THAT(mesh.diagnostics, IsEmpty());
}

TEST(RecoveredMeshTest, APlanIsThatOfAStage) {
  const RecoveredMesh mesh =
      recover_mesh(metadata(8, {{"pp", {0, 4}}}), {{"", 4, {0, 1, 2, 3}}}, 4);
  EXPECT_EQ(mesh.world_size, 4);
  EXPECT_EQ(mesh.sizes, MeshSizes{});
}

// Recorded by tests/tools/mesh_programs.py over four ranks, with DTensor's boxes.
class RecordedMeshTest : public testing::TestWithParam<const char*> {
 protected:
  RecordedMeshTest()
      : directory_(fs::path(SHARDLENS_TEST_DATA) / "recorded_meshes" / GetParam()),
        run_(open_run(std::span(&directory_, 1), {.keep_args = true})) {}

  fs::path directory_;
  trace::Run run_;
};

TEST_P(RecordedMeshTest, RanksHoldWhatDTensorSays) {
  ASSERT_TRUE(run_.planned) << run_.plan_problem;
  const plan::ResolvedPlan& plan = run_.planned->plan;
  EXPECT_EQ(plan.world_size, 4);
  std::ifstream in(directory_ / "dtensor.json");
  const auto expected = nlohmann::json::parse(in);
  const plan::Ownership ownership(plan);
  size_t compared = 0;
  for (const plan::ParameterPlace& place : plan::parameter_places(plan)) {
    const plan::Parameter& parameter = plan.tree.parameters[place.parameter];
    const auto& row = expected.at(parameter.fqn);
    EXPECT_EQ(parameter.shape, row.at("shape").get<std::vector<int64_t>>()) << parameter.fqn;
    for (int64_t rank = 0; rank < 4; ++rank) {
      Box box;
      for (const auto& [begin, end] : row.at("box")
                                          .at(static_cast<size_t>(rank))
                                          .get<std::vector<std::pair<int64_t, int64_t>>>()) {
        box.offset.push_back(begin);
        box.shape.push_back(end - begin);
      }
      EXPECT_THAT(ownership.part(place, rank).boxes, ElementsAre(box))
          << parameter.fqn << " on rank " << rank;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 4 * expected.size());
}

// What FSDP gathered is what the plan says that it gathers.
TEST_P(RecordedMeshTest, TheTraceHasTheMeshOfThePlan) {
  const RecoveredPlan recovered = recover_plan(run_.traces.front());
  const plan::ResolvedPlan& plan = run_.planned->plan;
  EXPECT_EQ(recovered.world_size, 4);
  EXPECT_EQ(recovered.shard, plan.shards());
  EXPECT_EQ(recovered.plan.mesh.tensor, plan.plan.mesh.tensor);
  EXPECT_EQ(recovered.plan.mesh.expert, plan.plan.mesh.expert);
  for (const RecoveredUnit& unit : recovered.units) {
    const auto found = std::ranges::find(plan.units, unit.fqn, &plan::Unit::fqn);
    ASSERT_NE(found, plan.units.end());
    EXPECT_EQ(unit.padded_numel,
              plan.layout(static_cast<UnitId>(found - plan.units.begin())).padded_numel())
        << unit.fqn;
  }
}

INSTANTIATE_TEST_SUITE_P(Programs,
                         RecordedMeshTest,
                         testing::Values("tensor", "experts-columns", "experts-in-block"),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace shardlens::analysis
