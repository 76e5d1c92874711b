// A recorded run whose last step a CUDA graph replays: traces/fsdp2-h200-graph has a step outside
// of the graph, one in which it was captured, and a replay of 23.220 ms (`analyze --by step`).
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {
namespace {

std::shared_ptr<const RecordedRun> graph_run() {
  const std::vector<std::filesystem::path> path{std::filesystem::path(SHARDLENS_TEST_DATA) /
                                                "../../traces/fsdp2-h200-graph"};
  return RecordedRun::open(path);
}

TEST(CapturedRunTest, IsComparedWithTheReplayedStep) {
  const auto run = graph_run();
  const Baseline& baseline = run->baseline();
  EXPECT_EQ(baseline.steps, 1);
  EXPECT_NEAR(static_cast<double>(baseline.measured), 23.220e6, 1e3);
  ASSERT_EQ(baseline.left_out.size(), 1U);
  EXPECT_EQ(baseline.left_out[0].reason, "a CUDA graph was captured in them");
  // The host's part is one launch: nothing waits for it, as in the uncaptured step of 62 ms.
  EXPECT_LT(std::abs(baseline.error()), 0.1);
  EXPECT_TRUE(run->observation().settings.software.cuda_graphs);
}

TEST(CapturedRunTest, OtherPlansArePredictedUnlessTheHostTakesPart) {
  Scenario scenario = own_scenario(graph_run());
  const Nanoseconds own = evaluate(scenario).figures.duration();
  scenario.plan.reshard_after_forward = {plan::Reshard::Kind::kNo, 0};
  EXPECT_LE(evaluate(scenario).figures.duration(), own);
  scenario.plan.cpu_offload = true;
  EXPECT_THAT(refusal_of(scenario), testing::HasSubstr("record the program without graphs"));
}

}  // namespace
}  // namespace shardlens::sim
