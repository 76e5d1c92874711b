#include "profiler/analysis/analyzed_run.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "profiler/report/analysis_report.h"

namespace shardlens::analysis {
namespace {

namespace fs = std::filesystem;

// Two ranks each; only the last has a plan of its own, of shardlens.record.
const fs::path kFsdpRun = SHARDLENS_TEST_DATA "/pytorch_traces/fsdp2-default";
const fs::path kDdpRun = SHARDLENS_TEST_DATA "/pytorch_traces/ddp-buckets";
const fs::path kOwnPlanRun = SHARDLENS_TEST_DATA "/recorded_run";

AnalyzedRun analyzed_run(const fs::path& path) {
  return AnalyzedRun::open(std::span(&path, 1), {.keep_args = true});
}

// What is found is the same object whatever asks for it, and in whatever order.
TEST(AnalyzedRunTest, FindsEachThingOnce) {
  const AnalyzedRun run = analyzed_run(kFsdpRun);
  const Timeline* second = &run.timeline(1);
  const RecoveredPlan* plan = &run.recovered_plan();
  const Timeline* first = run.matched().data();
  EXPECT_EQ(&run.timeline(0), first);
  EXPECT_EQ(&run.timeline(1), second);
  (void)analyze(run);
  EXPECT_EQ(run.matched().data(), first);
  EXPECT_EQ(&run.recovered_plan(), plan);
}

TEST(AnalyzedRunTest, MatchesCollectivesOfAllRanks) {
  const AnalyzedRun run = analyzed_run(kFsdpRun);
  for (const Timeline& timeline : run.matched()) {
    for (const Collective& each : timeline.collectives) {
      EXPECT_TRUE(each.transfer.has_value());
    }
  }
  EXPECT_EQ(run.matching().clocks.size(), 2U);
}

TEST(AnalyzedRunTest, AnalysisIsThatOfTheOpenedRun) {
  for (const fs::path& path : {kFsdpRun, kDdpRun, kOwnPlanRun}) {
    const AnalyzedRun run = analyzed_run(path);
    (void)run.matched();
    const std::string shared = report::analysis_json(analyze(run));
    EXPECT_EQ(shared, report::analysis_json(analyze(run.run()))) << path;
  }
}

// Chosen steps and matches for the critical path are those of the analysis, not of other users.
TEST(AnalyzedRunTest, AnalysisLeavesTheTimelinesAsTheyAre) {
  const AnalyzedRun run = analyzed_run(kOwnPlanRun);
  const size_t steps = run.timeline(0).steps.size();
  const IntervalSet span = run.timeline(0).span;
  AnalysisOptions options;
  options.steps = StepRange{3, 4};
  options.critical_path = true;
  const Analysis found = analyze(run, options);
  EXPECT_EQ(found.ranks.at(0).steps.size(), 1U);
  EXPECT_EQ(report::analysis_json(found), report::analysis_json(analyze(run.run(), options)));
  EXPECT_EQ(run.timeline(0).steps.size(), steps);
  EXPECT_EQ(run.timeline(0).span, span);
}

TEST(AnalyzedRunTest, RecordedPlanIsThatOfOpenRun) {
  const AnalyzedRun run = analyzed_run(kOwnPlanRun);
  const trace::Run other = open_run(std::span(&kOwnPlanRun, 1), {.keep_args = true});
  ASSERT_TRUE(run.run().planned && other.planned);
  const plan::ResolvedPlan& plan = other.planned->plan;
  const std::string workload = plan::to_json(other.planned->workload, plan);
  EXPECT_EQ(plan::to_json(run.run().planned->workload, plan), workload);
  EXPECT_EQ(plan::to_json(run.recorded_pass().recovered.workload, plan), workload);
  EXPECT_EQ(run.run().planned->settings, other.planned->settings);
}

TEST(AnalyzedRunTest, RecoveredPlanIsThatOfTheFirstTrace) {
  for (const fs::path& path : {kFsdpRun, kDdpRun}) {
    const AnalyzedRun run = analyzed_run(path);
    const RecoveredPlan alone = recover_plan(run.run().traces.front());
    EXPECT_EQ(plan::to_json(run.recovered_plan().plan), plan::to_json(alone.plan)) << path;
    EXPECT_EQ(run.recovered_plan().replicated(), path == kDdpRun);
  }
}

// A trace of Shardlens lists its units, so its timeline has no log of DDP.
TEST(AnalyzedRunTest, HasTheLogOfDdpOfEveryTrace) {
  const AnalyzedRun read = analyzed_run(kDdpRun);
  const size_t passes = read.ddp_log(0).passes.size();
  ASSERT_GT(passes, 0U);
  trace::Run named = read.run();
  named.traces[0].units = {""};
  const AnalyzedRun run(named);
  EXPECT_TRUE(run.timeline(0).ddp.passes.empty());
  EXPECT_EQ(run.ddp_log(0).passes.size(), passes);
  EXPECT_EQ(&run.ddp_log(0), &run.ddp_log(0));
}

// The app has timelines already.
TEST(AnalyzedRunTest, TakesTimelinesThatAreThere) {
  const AnalyzedRun read = analyzed_run(kFsdpRun);
  const AnalyzedRun run(read.run(), read.matched(), read.matching());
  EXPECT_EQ(run.matched().data(), read.matched().data());
  EXPECT_EQ(run.matching().clocks.size(), 2U);
}

}  // namespace
}  // namespace shardlens::analysis
