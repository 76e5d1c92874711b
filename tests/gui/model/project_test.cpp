#include "gui/model/what_if/project.h"

#include <fstream>

#include <gtest/gtest.h>

#include <QTemporaryDir>

#include "core/base/error.h"
#include "tests/support/message_of.h"

namespace shardlens::gui {
namespace {

namespace fs = std::filesystem;

Project example(const fs::path& directory) {
  Project project;
  project.traces = {directory / "runs" / "a", "/elsewhere/rank1.pt.trace.json.gz"};
  project.compared = {directory / "runs" / "b"};
  for (const int64_t depth : {0, 2}) {
    PlanState state;
    state.plan.forward_prefetch = depth;
    state.machine = depth == 0 ? "run" : "8xH100";
    state.step = {.batch = 4, .seq = 1024, .accumulate = 2, .sync_every_microbatch = false};
    state.step.optimizer = depth == 0 ? plan::Optimizer::kAdamW : plan::Optimizer::kSgd;
    if (depth > 0) {
      state.step.software = {.compile = plan::Compile::kBlock,
                             .cuda_graphs = true,
                             .matmul_dtype = plan::MatmulDType::kFp8Rowwise,
                             .matmul_tail = 5,
                             .loss_chunks = 8};
      state.step.optimizer_impl = plan::OptimizerImpl::kForeach;
      state.transport = sim::Transport::kSymmetric;
      state.stack = "torchtitan";
      state.power_watts = 450;
      state.plan.mesh.tensor = 2;
    }
    state.world_size = 8;
    project.plans.push_back(state);
    project.titles.push_back(QString("prefetch %1").arg(depth));
  }
  project.current = 1;
  project.bookmarks = {{1'234'567, "slow \"all-gather\" — hier"}, {9, {}}};
  project.notes = "line one\nline two ▨";
  project.lanes = LaneArrangement{{"exposed", "compute"}, {"copies"}, {{3, "compute"}}, true};
  return project;
}

// Clears the source files of plans, which differ between projects.
void forget_sources(Project& project) {
  for (PlanState& state : project.plans) {
    state.plan.source = {};
  }
}

TEST(ProjectTest, ComesBackAsItWasSaved) {
  const QTemporaryDir folder;
  const fs::path file = fs::path(folder.path().toStdString()) / "work.shardlens";
  Project project = example(file.parent_path());
  save_project(project, file);
  Project read = load_project(file);
  forget_sources(project);
  forget_sources(read);
  EXPECT_EQ(read, project);
  EXPECT_EQ(to_json(read, file), to_json(project, file));
}

// Paths below the project file stay valid when both are moved.
TEST(ProjectTest, PathsBelowTheFileAreRelative) {
  const Project project = example("/data/work");
  const std::string json = to_json(project, "/data/work/p.shardlens");
  EXPECT_NE(json.find("\"runs/a\""), std::string::npos) << json;
  EXPECT_NE(json.find("\"/elsewhere/rank1.pt.trace.json.gz\""), std::string::npos);
  EXPECT_EQ(parse_project(json, "/moved/p.shardlens").traces.front(), "/moved/runs/a");
}

TEST(ProjectTest, WrongFilesAreRefusedByName) {
  const struct {
    const char* json;
    const char* said;
  } cases[] = {
      {"", "work.shardlens"},
      {"[]", "found an array"},
      {"{}", "shardlens_project"},
      {R"({"shardlens_project": 2, "traces": ["a"]})", "version 2"},
      {R"({"shardlens_project": 1})", "traces"},
      {R"({"shardlens_project": 1, "traces": ["a"], "model": "b"})", "either"},
      {R"({"shardlens_project": 1, "traces": [""]})", "#/traces/0"},
      {R"({"shardlens_project": 1, "traces": [7]})", "#/traces/0"},
      {R"({"shardlens_project": 1, "traces": ["a"], "note": "x"})", "did you mean 'notes'"},
      {R"({"shardlens_project": 1, "traces": ["a"], "current": 1})", "#/current"},
      {R"({"shardlens_project": 1, "traces": ["a"], "current": -1})", "#/current"},
      {R"({"shardlens_project": 1, "traces": ["a"], "plans": [{}]})", "#/plans/0"},
      {R"({"shardlens_project": 1, "traces": ["a"], "plans": [{"title": "", "hardware": "8xH100",
          "world_size": 0, "batch": 1, "seq": 1, "plan": {"version": 1}}]})",
       "world_size"},
      {R"({"shardlens_project": 1, "traces": ["a"], "plans": [{"title": "", "hardware": "8xH100",
          "world_size": 8, "batch": 1, "seq": 1, "plan": {"version": 1, "unitz": []}}]})",
       "unitz"},
      {R"({"shardlens_project": 1, "traces": ["a"], "bookmarks": [{"time_ns": "x", "note": ""}]})",
       "#/bookmarks/0"},
  };
  for (const auto& each : cases) {
    const std::string message =
        test::message_of<InputError>([&] { (void)parse_project(each.json, "work.shardlens"); });
    EXPECT_NE(message.find(each.said), std::string::npos) << each.json << " gave: " << message;
    EXPECT_EQ(message.find("work.shardlens"), 0) << message;
  }
}

TEST(ProjectTest, NothingIsWrittenWhereItCannotBe) {
  EXPECT_THROW(save_project(example("/x"), "/no/such/directory/p.shardlens"), RuntimeFault);
  EXPECT_THROW((void)load_project("/no/such/p.shardlens"), InputError);
}

TEST(ProjectTest, IsToldByItsEnding) {
  EXPECT_TRUE(is_project_file("a.shardlens"));
  EXPECT_TRUE(is_project_file("A.SHARDLENS"));
  EXPECT_FALSE(is_project_file("shardlens.json"));
}

}  // namespace
}  // namespace shardlens::gui
