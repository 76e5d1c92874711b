// Process groups of other parallelism than FSDP's and DDP's.
#include "profiler/trace/parallel_axes.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/error.h"
#include "profiler/analysis/analysis.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using trace::ModelAxis;
using trace::ParallelAxis;
using trace::ProcessGroup;
namespace fs = std::filesystem;

// As DeviceMesh, torchtitan and Megatron-LM describe their groups.
TEST(ParallelAxesTest, DescriptionsNameTheAxis) {
  for (const char* data :
       {"mesh_dp", "mesh_dp_shard", "mesh_dp_shard_cp", "mesh_dp_replicate", "mesh_ep_shard",
        "mesh_dp_shard_mod_ep", "fsdp", "efsdp", "mesh_shard", "DATA_PARALLEL_GROUP",
        "EXPERT_DATA_PARALLEL_GROUP", "TENSOR_AND_DATA_PARALLEL_GROUP", "loss"}) {
    EXPECT_EQ(trace::axis_of(data), ParallelAxis::kData) << data;
  }
  for (const char* tensor : {"mesh_tp", "tp", "TENSOR_MODEL_PARALLEL_GROUP", "etp"}) {
    EXPECT_EQ(trace::axis_of(tensor), ParallelAxis::kTensor) << tensor;
  }
  for (const char* context : {"mesh_cp", "cp", "CONTEXT_PARALLEL_GROUP", "ulysses_sp"}) {
    EXPECT_EQ(trace::axis_of(context), ParallelAxis::kContext) << context;
  }
  for (const char* expert : {"mesh_ep", "ep", "EXPERT_MODEL_PARALLEL_GROUP"}) {
    EXPECT_EQ(trace::axis_of(expert), ParallelAxis::kExpert) << expert;
  }
  for (const char* pipeline : {"mesh_pp", "PIPELINE_MODEL_PARALLEL_GROUP"}) {
    EXPECT_EQ(trace::axis_of(pipeline), ParallelAxis::kPipeline) << pipeline;
  }
  for (const char* none : {"default_pg", "undefined", "", "mesh_step", "keep"}) {
    EXPECT_EQ(trace::axis_of(none), std::nullopt) << none;
  }
}

TEST(ParallelAxesTest, OnlyGroupsOfSeveralRanksDivideTheModel) {
  const auto group = [](const char* description, std::vector<int64_t> ranks) {
    ProcessGroup out;
    out.description = description;
    out.ranks = std::move(ranks);
    return out;
  };
  const std::vector<ModelAxis> axes =
      trace::model_axes({group("default_pg", {0, 1, 2, 3, 4, 5, 6, 7}), group("mesh_tp", {0, 1}),
                         group("mesh_tp", {0, 1}), group("mesh_cp", {0}),
                         group("mesh_ep", {0, 2, 4, 6}), group("mesh_dp", {0, 2, 4, 6})});
  EXPECT_THAT(axes, ElementsAre(ModelAxis{ParallelAxis::kTensor, "mesh_tp", 2},
                                ModelAxis{ParallelAxis::kExpert, "mesh_ep", 4}));
  EXPECT_EQ(trace::words_of(axes),
            "tensor parallelism over 2 ranks (process group mesh_tp) and expert parallelism over 4 "
            "ranks (process group mesh_ep)");
  EXPECT_EQ(trace::ranks_of_plan(8, axes), 8);
}

trace::Trace read(const char* name) {
  return trace::read_trace(
      fs::path(SHARDLENS_TEST_DATA) / "pytorch_traces" / name / "rank0.pt.trace.json.gz",
      {.keep_args = true});
}

// Four ranks: two tensor parallel, two shards.
TEST(ParallelAxesTest, RanksOfTensorParallelismAreNoReplicas) {
  const RecoveredPlan plan = recover_plan(read("fsdp2-tensor"));
  EXPECT_EQ(plan.world_size, 4);
  EXPECT_EQ(plan.shard, 2);
  EXPECT_EQ(plan.plan.mesh, (plan::MeshSizes{.replicate = 1, .shard = 2, .tensor = 2}));
  ASSERT_EQ(plan.axes.size(), 1U);
  EXPECT_EQ(plan.axes[0], (ModelAxis{ParallelAxis::kTensor, "mesh_tp", 2}));
}

TEST(ParallelAxesTest, ReplicasOfAHybridMeshStay) {
  const RecoveredPlan plan = recover_plan(read("fsdp2-hybrid"));
  EXPECT_EQ(plan.world_size, 4);
  EXPECT_EQ(plan.plan.mesh.replicate, 2);
  EXPECT_THAT(plan.axes, testing::IsEmpty());
}

// Names of the groups that the busiest collectives of a run on Gloo belong to.
std::set<std::string> group_names(const char* name) {
  std::set<std::string> out;
  const Analysis analysis =
      analyze(trace::Run::open(fs::path(SHARDLENS_TEST_DATA) / "pytorch_traces" / name));
  for (const GroupFigures& group : analysis.ranks.at(0).groups) {
    out.insert(group.name);
  }
  return out;
}

TEST(ParallelAxesTest, GloosCollectivesHaveTheGroupsThatOnlyFit) {
  EXPECT_THAT(group_names("fsdp2-tensor"), ElementsAre("mesh_dp", "mesh_tp"));
  EXPECT_THAT(group_names("fsdp2-hybrid"), ElementsAre("mesh_replicate", "mesh_shard"));
}

// The numbers of ranks of a trace's collectives of activations, after a group of a second axis was
// added to its list of groups.
std::set<int64_t> ranks_of_activations(int64_t size_of_second) {
  trace::Trace trace = read("fsdp2-tensor");
  ProcessGroup second{"9", "mesh_cp", "", {0}, size_of_second};
  for (int64_t rank = 1; rank < size_of_second; ++rank) {
    second.ranks.push_back(rank);
  }
  trace.metadata.groups.push_back(second);
  std::set<int64_t> out;
  for (const Collective& each : make_timeline(trace).collectives) {
    if (each.unit && each.part == UnitPart::kOther) {
      EXPECT_EQ(each.listed_group, trace::kNoIndex);
      out.insert(each.ranks);
    }
  }
  return out;
}

TEST(ParallelAxesTest, GroupsOfOneSizeSayHowManyRanksACollectiveHas) {
  EXPECT_THAT(ranks_of_activations(2), ElementsAre(2));
  EXPECT_THAT(ranks_of_activations(4), ElementsAre(0)) << "2 or 4";
}

// As of experts that each rank has for itself: their mesh for FSDP has one rank.
TEST(ParallelAxesTest, CollectivesAreOfTheOnlyGroupOfSeveralRanks) {
  trace::Trace trace = read("fsdp2-default");
  ASSERT_EQ(trace.metadata.groups.size(), 1U);
  const int64_t world = trace.metadata.groups.front().size;
  ASSERT_GT(world, 1);
  trace.metadata.groups.push_back({"1", "mesh_efsdp", "", {0}, 1});
  for (const Collective& each : make_timeline(trace).collectives) {
    EXPECT_EQ(each.ranks, world);
    EXPECT_EQ(each.listed_group, 0U);
  }
}

class RecordedRunTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("shardlens-axes-" + std::to_string(::getpid()));
    fs::remove_all(directory_);
    fs::copy(fs::path(SHARDLENS_TEST_DATA) / "recorded_run", directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }
  void write_run(const std::string& json) const { std::ofstream(directory_ / "run.json") << json; }
  [[nodiscard]] trace::Run opened() const { return open_run(std::span(&directory_, 1)); }
  fs::path directory_;
};

// Recorders up to 0.1.0 wrote the mesh of the ranks that share data.
TEST_F(RecordedRunTest, OlderPlansGetTheAxisThatTheGroupsShow) {
  for (const bool local : {true, false}) {
    write_run(R"({"world_size": 4, "notes": [], "shapes": ")" +
              std::string(local ? "local" : "whole") + R"(", "groups": [
        {"id": "0", "description": "default_pg", "ranks": [0, 1, 2, 3]},
        {"id": "1", "description": "mesh_dp", "ranks": [0, 2]},
        {"id": "3", "description": "mesh_tp", "ranks": [0, 1]}]})");
    const std::string run_json = trace::Run::open(directory_).environment;
    const std::vector<ProcessGroup> groups = trace::groups_of_run(run_json);
    ASSERT_EQ(groups.size(), 3U);
    EXPECT_EQ(trace::model_axes(groups).at(0).group, "mesh_tp");
    EXPECT_EQ(groups.at(1).ranks, (std::vector<int64_t>{0, 2}));
    plan::Plan plan;
    plan.mesh.shard = 2;
    trace::add_tensor_axis(plan, groups, run_json);
    EXPECT_EQ(plan.mesh.tensor, 2);
    // The shapes in model.json are divided already, or those of whole parameters.
    EXPECT_EQ(plan.tensor_parallel.size(), local ? 1U : 0U);
    plan.mesh.tensor = 4;
    trace::add_tensor_axis(plan, groups, run_json);
    EXPECT_EQ(plan.mesh.tensor, 4) << "the plan's own";
  }
}

TEST_F(RecordedRunTest, NotesOfTheRecorderSayWhyThereIsNoPlan) {
  fs::remove(directory_ / "plan.json");
  write_run(R"({"world_size": 2, "notes": ["no plan.json: the unit 'a' has another mesh than ''",
                                           "torch.compile: operators have no names"]})");
  const trace::Run run = opened();
  EXPECT_FALSE(run.planned);
  EXPECT_EQ(run.plan_problem, "no plan.json: the unit 'a' has another mesh than ''");
  std::string messages;
  for (const trace::Diagnostic& d : run.diagnostics) {
    messages += d.message + "\n";
  }
  EXPECT_THAT(messages, HasSubstr("shardlens.record: no plan.json: the unit 'a'"));
  EXPECT_THAT(messages, HasSubstr("shardlens.record: torch.compile"));
}

}  // namespace
}  // namespace shardlens::analysis
