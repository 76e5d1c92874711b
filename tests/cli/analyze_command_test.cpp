#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/model/step_workload.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/schedule/planned/planned.h"
#include "core/workload/workload.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

// Runs `shardlens` on a capture directory like that of a run of llama-tiny: plan, workload, and for
// each rank a trace that issues every planned action. Collectives run one after another for 10 us,
// each followed by a matrix product of 20 us.
class AnalyzeCommandTest : public ShardlensCommandTest {
 protected:
  void SetUp() override {
    ShardlensCommandTest::SetUp();
    ASSERT_FALSE(HasFatalFailure());
    capture_ = fs::path(folder_) / "capture";
    fs::create_directories(capture_);
    const fs::path model = fs::path(SHARDLENS_TEST_DATA) / "llama-tiny/config.json";
    const plan::ModelConfig config = plan::load_model_config(model);
    const plan::ModuleTree tree = plan::module_tree(config);
    plan_ = plan::resolve(plan::strategy_plan("full_shard", tree), tree, 2);
    workload_ = plan::step_workload(config, plan_, {.batch = 1, .seq = 8});
    std::ofstream(capture_ / "plan.json") << plan::to_json(plan_.plan);
    std::ofstream(capture_ / "workload.json") << plan::to_json(workload_, plan_);
    std::ofstream(capture_ / "run.json") << json{{"options", {{"model", model.string()}}}};
  }

  void write_trace(int64_t rank,
                   const std::vector<schedule::PlannedAction>& actions,
                   int steps = 3,
                   std::vector<trace::Diagnostic> notes = {}) {
    trace::Trace t;
    t.metadata.notes = std::move(notes);
    t.metadata.rank = rank;
    t.metadata.world_size = 2;
    t.metadata.backend = "gloo";
    for (const plan::Unit& unit : plan_.units) {
      t.units.push_back(unit.fqn);
    }
    const uint32_t main = t.track(1, 1), comm = t.track(1, 2);
    Nanoseconds now = 1'000'000;
    uint32_t seq = 0;
    int64_t sequence = 0;
    for (int step = 0; step < steps; ++step) {
      const Nanoseconds begin = now;
      for (const schedule::PlannedAction& each : actions) {
        trace::ActionArgs action;
        action.seq = ++seq;
        action.action = each.action;
        t.add_action(main, now, action);
        const bool gather = each.action.op == schedule::Op::kAllGather;
        if (gather || each.action.op == schedule::Op::kReduceScatter) {
          trace::CollectiveArgs args;
          const CollectiveKind kind =
              gather ? CollectiveKind::kAllGather : CollectiveKind::kReduceScatter;
          args.collective = t.strings.intern(kineto_name(kind));
          args.dtype = t.strings.intern("Float");
          args.unit = each.action.unit;
          args.action = seq;
          args.in_nelems = args.out_nelems = 256;
          args.sequence = sequence++;
          args.issued = now;
          t.add_collective("gloo:collective", comm, now, now + 10'000, args);
          t.add_complete(trace::Category::kCpuOp, "aten::mm", main, now + 10'000, now + 30'000);
          now += 30'000;
        }
      }
      now += 1'000;  // the last actions are within their step
      t.add_complete(trace::Category::kUserAnnotation, "ProfilerStep#" + std::to_string(step), main,
                     begin, now);
    }
    trace::write_kineto(t, capture_ / ("rank" + std::to_string(rank) + ".pt.trace.json.gz"));
  }

  [[nodiscard]] std::vector<schedule::PlannedAction> planned() const {
    return schedule::planned_step(workload_, plan_).actions;
  }

  json json_of(const std::string& arguments) {
    const CommandResult result = run("analyze " + arguments + " --json");
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return json::parse(result.out);
  }
  fs::path capture_;
  plan::ResolvedPlan plan_;
  plan::Workload workload_;
};

TEST_F(AnalyzeCommandTest, AnOrderAsPlannedAgrees) {
  write_trace(0, planned());
  write_trace(1, planned());
  const json out = json_of(capture_.string());
  ASSERT_EQ(out.at("ranks").size(), 2U);
  for (const json& rank : out.at("ranks")) {
    const json& order = rank.at("order");
    EXPECT_GT(order.at("planned_vs_issued").at("compared"), 0);
    EXPECT_TRUE(order.at("planned_vs_issued").at("first_difference").is_null()) << order;
    EXPECT_EQ(order.at("issued_vs_started").at("compared"),
              order.at("planned_vs_issued").at("compared"));
    EXPECT_TRUE(order.at("issued_vs_started").at("first_difference").is_null());
    // All 10 us of each collective are exposed; the other time is compute, and 1 us idle per step.
    const int64_t count = order.at("issued_vs_started").at("compared");
    EXPECT_EQ(rank.at("exposed_comm_ns"), count * 10'000);
    EXPECT_EQ(rank.at("compute_ns"), count * 20'000);
    EXPECT_EQ(rank.at("idle_ns"), 3'000);
    EXPECT_EQ(rank.at("steps").size(), 3U);
  }
  const CommandResult text = run("analyze " + capture_.string());
  EXPECT_THAT(text.out, HasSubstr("planned and issued order agree"));
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos);
}

TEST_F(AnalyzeCommandTest, SwappedLayersAreNamed) {
  std::vector<schedule::PlannedAction> actions = planned();
  std::vector<schedule::PlannedAction*> gathers;
  for (schedule::PlannedAction& each : actions) {
    if (each.action.op == schedule::Op::kAllGather) {
      gathers.push_back(&each);
    }
  }
  ASSERT_GE(gathers.size(), 3U);
  const std::string first = plan_.units[gathers[1]->action.unit].fqn,
                    second = plan_.units[gathers[2]->action.unit].fqn;
  std::swap(gathers[1]->action.unit, gathers[2]->action.unit);
  write_trace(0, actions);
  const json difference = json_of(capture_.string())
                              .at("ranks")
                              .at(0)
                              .at("order")
                              .at("planned_vs_issued")
                              .at("first_difference");
  EXPECT_EQ(difference.at("step"), 0);
  EXPECT_EQ(difference.at("expected"), "all_gather (" + first + ")");
  EXPECT_EQ(difference.at("found"), "all_gather (" + second + ")");
  EXPECT_THAT(run("analyze " + capture_.string()).out,
              HasSubstr("planned and issued order differs first in step 0"));
}

TEST_F(AnalyzeCommandTest, WhatTheRecordingLostIsADiagnostic) {
  write_trace(0, planned(), 3, {{trace::Severity::kWarning, "records were not kept", 7}});
  const auto says = [&](const std::string& paths) {
    std::vector<json> found;
    const json out = json_of(paths);
    for (const json& each : out.at("diagnostics")) {
      if (each.at("message").get<std::string>().find("not kept") != std::string::npos) {
        found.push_back(each);
      }
    }
    ASSERT_EQ(found.size(), 1U) << paths;
    EXPECT_EQ(found[0].at("severity"), "warning");
    EXPECT_EQ(found[0].at("count"), 7);
  };
  says(capture_.string());
  EXPECT_THAT(run("analyze " + capture_.string()).out, HasSubstr("records were not kept"));
  const CommandResult converted =
      run("convert " + capture_.string() + " --out " + folder_ + "/converted");
  EXPECT_EQ(converted.code, 0) << converted.err;
  says(folder_ + "/converted");
}

TEST_F(AnalyzeCommandTest, ChoosesStepsTablesAndRows) {
  write_trace(0, planned());
  EXPECT_EQ(json_of(capture_.string() + " --steps 1:2").at("ranks").at(0).at("steps").size(), 1U);
  EXPECT_THAT(run("analyze --by step --csv " + capture_.string()).out,
              HasSubstr("rank,step,span_ns"));
  for (const char* by : {"unit", "collective", "step", "rank", "stream"}) {
    EXPECT_EQ(run(std::string("analyze --by ") + by + " " + capture_.string()).code, 0) << by;
  }
  EXPECT_THAT(run("analyze --top 1 " + capture_.string()).out, HasSubstr("more)"));
}

TEST_F(AnalyzeCommandTest, WrongFlagsAreUsage) {
  write_trace(0, planned());
  const std::string path = " " + capture_.string();
  for (const char* flags :
       {"--by colour", "--steps 3", "--steps 4:2", "--steps a:b", "--comm-regex [", "--json --csv",
        "--jsn", "--top -1", "--critical-path --csv", "--compat hta --by step",
        "--compat hta --steps 1:2"}) {
    const CommandResult result = run("analyze " + std::string(flags) + path);
    EXPECT_EQ(result.code, 2) << flags << ": " << result.err;
    EXPECT_EQ(result.out, "") << flags;
    EXPECT_THAT(result.err, HasSubstr("shardlens: ")) << flags;
  }
  EXPECT_EQ(run("analyze").code, 2);
}

// An expression that a backtracking search would never finish with, and one that is nested too
// deeply for a parser or a search that calls itself.
TEST_F(AnalyzeCommandTest, HostileExpressionsEnd) {
  write_trace(0, planned());
  const std::string path = " " + capture_.string();
  const CommandResult slow = run("analyze --comm-regex '(a|a)*(a|a)*(a|aa)+$|(.*)*x'" + path);
  EXPECT_EQ(slow.code, 0) << slow.err;
  const CommandResult deep = run("analyze --comm-regex '" + std::string(20'000, '(') +
                                 std::string(20'000, ')') + "'" + path);
  EXPECT_EQ(deep.code, 0) << deep.err;
  const CommandResult open = run("analyze --comm-regex '" + std::string(20'000, '(') + "'" + path);
  EXPECT_EQ(open.code, 2);
  EXPECT_THAT(open.err, HasSubstr("is not a regular expression"));
  EXPECT_LT(open.err.size(), 400U);
}

TEST_F(AnalyzeCommandTest, MessagesDoNotSteerTheTerminal) {
  const CommandResult result = run(R"~(analyze "$(printf 'no\033[31m\342\200\256such.json')")~");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("no\\x1b[31m\\u{202e}such.json"));
}

TEST_F(AnalyzeCommandTest, BadInputIsNamed) {
  EXPECT_EQ(run("analyze " + capture_.string()).code, 3);  // no trace
  EXPECT_EQ(run("analyze " + (fs::path(folder_) / "none").string()).code, 3);
  write_trace(0, planned());
  const CommandResult beyond = run("analyze --steps 50:60 " + capture_.string());
  EXPECT_EQ(beyond.code, 3);
  EXPECT_THAT(beyond.err, HasSubstr("no step in 50:60; the trace has 0 to "));
  std::ofstream(fs::path(folder_) / "cut.json") << "{\"traceEvents\": [{\"ph\": \"X\"";
  const CommandResult cut = run("analyze " + (fs::path(folder_) / "cut.json").string());
  EXPECT_EQ(cut.code, 3);
  EXPECT_THAT(cut.err, HasSubstr("cut.json at byte "));
}

TEST_F(AnalyzeCommandTest, ConvertTrimsAndKeepsWhatAnalyzeNeeds) {
  write_trace(0, planned());
  write_trace(1, planned());
  const fs::path out = fs::path(folder_) / "trimmed";
  ASSERT_EQ(
      run("convert " + capture_.string() + " --out " + out.string() + " --steps 1:3 --ranks 1")
          .code,
      0);
  EXPECT_FALSE(fs::exists(out / "rank0.pt.trace.json.gz"));
  const json whole = json_of(capture_.string() + " --steps 1:3"), part = json_of(out.string());
  EXPECT_EQ(part.at("ranks").at(0).at("exposed_comm_ns"),
            whole.at("ranks").at(1).at("exposed_comm_ns"));
  EXPECT_EQ(part.at("ranks").at(0).at("units"), whole.at("ranks").at(1).at("units"));
  EXPECT_EQ(
      run("convert " + capture_.string() + " --out " + (fs::path(folder_) / "one.json").string())
          .code,
      2);  // two ranks, one file
  EXPECT_EQ(run("convert " + capture_.string() + " --out " +
                (fs::path(folder_) / "one.json").string() + " --ranks 0 --categories cpu_op")
                .code,
            0);
  for (const trace::Event& event : trace::read_kineto(fs::path(folder_) / "one.json").events) {
    EXPECT_TRUE(event.category == trace::Category::kCpuOp ||
                event.category == trace::Category::kUserAnnotation);
  }
  EXPECT_EQ(run("convert " + capture_.string() + " --out " + (fs::path(folder_) / "x").string() +
                " --ranks 7")
                .code,
            3);
}

}  // namespace
}  // namespace shardlens
