// A simulated step as traces: analyze finds the figures that the simulator counted.
#include "sim/engine/simulated_run.h"

#include <filesystem>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/error.h"
#include "profiler/analysis/analysis.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/sim/engine/chain.h"

namespace shardlens::sim::test {
namespace {

Durations durations() {
  return {.forward = 1000,
          .backward = 2000,
          .all_gather = 600,
          .reduce_scatter = 1700,
          .all_reduce = 300,
          .copy = 70,
          .issue_operator = 20,
          .issue_action = 5};
}

void expect_figures(const analysis::WindowFigures& figures, const StepFigures& simulated) {
  EXPECT_EQ(figures.compute, simulated.compute);
  EXPECT_EQ(figures.comm, simulated.comm);
  EXPECT_EQ(figures.overlap, simulated.overlap);
  EXPECT_EQ(figures.exposed_comm, simulated.exposed_comm);
  EXPECT_EQ(figures.exposed_copy, simulated.exposed_copy);
  EXPECT_EQ(figures.duration(), simulated.duration());
}

class SimulatedRunTest : public ::testing::TestWithParam<std::tuple<HostMode, const char*, bool>> {
};

TEST_P(SimulatedRunTest, AnalyzeFindsTheSameFiguresAndOrder) {
  const auto [host, strategy, per_parameter] = GetParam();
  const Chain chain = make_chain({.layers = 4,
                                  .strategy = strategy,
                                  .ranks = 4,
                                  .change = [&, split = per_parameter](plan::Plan& plan) {
                                    if (split) {
                                      plan.layout = plan::Layout::kPerParameter;
                                    }
                                  }});
  const SimulatedStep step = chain.run(durations(), {.host = host});
  SimulatedRunOptions options;
  options.host = host;
  options.steps = 2;
  trace::Run run = simulated_run(chain.workload, chain.plan, chain.step, step, options);
  ASSERT_EQ(run.traces.size(), 4U);
  run.planned = trace::PlannedInputs{chain.plan, chain.workload, {}, {}};
  const analysis::Analysis result = analysis::analyze(run);
  ASSERT_EQ(result.ranks.size(), 4U);
  for (const analysis::RankAnalysis& rank : result.ranks) {
    EXPECT_EQ(rank.device, host == HostMode::kAhead);
    ASSERT_EQ(rank.steps.size(), 2U);
    expect_figures(rank.steps[0].figures, step.ranks[0].figures);
    EXPECT_GT(rank.order.planned_vs_issued.compared, 0);
    EXPECT_FALSE(rank.order.planned_vs_issued.first_difference);
    EXPECT_EQ(rank.order.issued_vs_started.compared, rank.order.planned_vs_issued.compared);
    EXPECT_FALSE(rank.order.issued_vs_started.first_difference);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Grid,
    SimulatedRunTest,
    ::testing::Combine(::testing::Values(HostMode::kAhead, HostMode::kCompute),
                       ::testing::Values("full_shard", "shard_grad_op", "no_shard", "hybrid_shard"),
                       ::testing::Bool()),
    [](const auto& each) {
      const bool ahead = std::get<0>(each.param) == HostMode::kAhead;
      return std::string(ahead ? "host_ahead_" : "host_computes_") + std::get<1>(each.param) +
             (std::get<2>(each.param) ? "_per_parameter" : "_flat");
    });

TEST(SimulatedTraceTest, IsReadBackAsItWasWritten) {
  const Chain chain = make_chain({.layers = 3});
  const SimulatedStep step = chain.run(durations());
  SimulatedRunOptions options;
  const trace::Trace written =
      simulated_trace(chain.workload, chain.plan, chain.step, step, 1, options);
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) /
                                     ("simulated_trace_" + std::to_string(::getpid()) + ".json.gz");
  trace::write_kineto(written, file);
  const trace::Trace read = trace::read_kineto(file);
  std::filesystem::remove(file);
  EXPECT_TRUE(read.diagnostics.empty());
  ASSERT_EQ(read.events.size(), written.events.size());
  EXPECT_EQ(read.metadata.rank, 1);
  EXPECT_EQ(read.actions.size(), chain.step.actions.size());
  EXPECT_EQ(read.hooks.size(), chain.step.hooks.size());
  for (size_t i = 0; i < read.collectives.size(); ++i) {
    EXPECT_EQ(read.collectives[i].in_nelems, written.collectives[i].in_nelems);
    EXPECT_EQ(read.collectives[i].sequence, written.collectives[i].sequence);
  }
}

TEST(SimulatedTraceTest, NeedsTimes) {
  const Chain chain = make_chain({.layers = 1});
  const SimulatedStep step = chain.run(durations(), {.keep_times = false});
  EXPECT_THROW(simulated_run(chain.workload, chain.plan, chain.step, step, {}), RuntimeFault);
}

}  // namespace
}  // namespace shardlens::sim::test
