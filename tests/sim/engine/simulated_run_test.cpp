// A simulated step as traces: analyze finds the figures that the simulator counted.
#include "sim/engine/simulated_run.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/error.h"
#include "profiler/analysis/analysis.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "tests/core/workload/with_communication.h"
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

// Communication of the workload is in the trace with its group, and analyze assigns it to the unit
// in whose forward it was issued, apart from the collectives of units.
TEST(SimulatedCommunicationTest, AnalyzeFindsIt) {
  Chain chain = make_chain(
      {.layers = 3, .ranks = 4, .change = [](plan::Plan& plan) { plan.mesh.context = 2; }});
  plan::Communication each;
  each.group = 2;
  each.unit = 2;
  each.module = "layers.1";
  each.bytes = 4096;
  for (const plan::Phase phase : {plan::Phase::kForward, plan::Phase::kBackward}) {
    each.phase = phase;
    // In the middle of the second layer's backward, which has two operators, as the third's has,
    // which comes after that of the loss.
    const size_t at =
        shardlens::test::position_of(chain.workload, phase, phase == plan::Phase::kForward ? 1 : 3);
    ASSERT_EQ(chain.workload.operators[chain.workload.order[at].index].unit, 2U);
    shardlens::test::insert_communication(chain.workload, at + 1, each);
  }
  chain.step = schedule::planned_step(chain.workload, chain.plan);
  for (const HostMode host : {HostMode::kAhead, HostMode::kCompute}) {
    const PricedStep step = chain.priced(durations());
    const SimulatedStep simulated = simulate(step, {.host = host});
    const trace::Run run = simulated_run(step, simulated, {.host = host});
    ASSERT_EQ(run.traces.size(), 4U);
    const trace::Trace& trace = run.traces[3];
    const analysis::Timeline timeline = analysis::make_timeline(trace);
    size_t found = 0;
    for (const analysis::Collective& collective : timeline.collectives) {
      const trace::CollectiveArgs& args = trace.collectives.at(collective.args);
      if (trace.strings.view(args.group) != "context") {
        EXPECT_NE(collective.part, analysis::UnitPart::kOther);
        continue;
      }
      ++found;
      EXPECT_EQ(trace.strings.view(args.group_ranks), "[2, 3]");
      EXPECT_EQ(collective.kind, CollectiveKind::kAllReduce);
      EXPECT_EQ(collective.part, analysis::UnitPart::kOther);
      EXPECT_EQ(collective.bytes, 4096);
      EXPECT_EQ(collective.when.length(), 300);
      ASSERT_TRUE(collective.unit);
      EXPECT_EQ(timeline.units.at(*collective.unit), "layers.1");
    }
    EXPECT_EQ(found, 2U);
    expect_figures(analysis::analyze(run).ranks.front().steps[0].figures,
                   simulated.ranks[0].figures);
  }
}

// Units that stay sharded over 2 and over 4 of 8 ranks after forward: backward gathers each over
// its own group, which takes as long as a group of this size.
TEST(KeptSubMeshesTest, EachUnitIsGatheredOverItsOwnGroup) {
  const Chain chain = make_chain(
      {.layers = 4, .ranks = 8, .change = [](plan::Plan& plan) {
         const auto kept = [](int64_t ranks) {
           return plan::Reshard{plan::Reshard::Kind::kSubMesh, ranks};
         };
         plan.units = {{.globs = {""}},
                       {.globs = {"layers.0", "layers.3"}, .reshard_after_forward = kept(2)},
                       {.globs = {"layers.1", "layers.2"}, .reshard_after_forward = kept(4)}};
       }});
  const Durations costs{.forward = 1000, .backward = 2000, .all_gather = 100, .per_peer = 10};
  for (const double slow : {1.0, 1.5}) {  // alike, or each rank simulated
    SimulationOptions options;
    if (slow > 1) {
      options.rank_slowdown = std::vector<double>(8, 1.0);
      options.rank_slowdown[6] = slow;
    }
    const trace::Run run = simulated_run(chain.priced(), chain.run(costs, options), {.steps = 1});
    const trace::Trace& trace = run.traces.at(5);
    std::map<std::string, std::vector<int64_t>> groups;
    for (const trace::ProcessGroup& group : trace.metadata.groups) {
      groups[group.name] = group.ranks;
    }
    EXPECT_EQ(groups["sub_shard2"], (std::vector<int64_t>{4, 5}));
    EXPECT_EQ(groups["sub_shard4"], (std::vector<int64_t>{4, 5, 6, 7}));
    std::vector<std::tuple<std::string, std::string, int64_t, Nanoseconds>> gathers;
    for (const trace::Event& event : trace.events) {
      const trace::CollectiveArgs* args = trace.collective(event);
      if (args != nullptr && trace.strings.view(args->collective) == "_allgather_base") {
        gathers.emplace_back(trace.units.at(args->unit), trace.strings.view(args->group),
                             args->group_size, event.duration);
      }
    }
    std::ranges::sort(gathers);
    // Rank 5 waits for the slow rank 6 in the groups that both are in.
    const auto row = [slow](int layer, const char* group, int64_t ranks) {
      const Nanoseconds own{100 + 10 * (ranks - 1)};
      return testing::FieldsAre(
          fmt::format("layers.{}", layer), group, ranks,
          slow == 1 || ranks == 2 ? testing::Matcher<Nanoseconds>(own) : testing::Ge(own));
    };
    EXPECT_THAT(gathers, testing::ElementsAre(row(0, "shard", 8), row(0, "sub_shard2", 2),
                                              row(1, "shard", 8), row(1, "sub_shard4", 4),
                                              row(2, "shard", 8), row(2, "sub_shard4", 4),
                                              row(3, "shard", 8), row(3, "sub_shard2", 2)));
  }
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
  trace::Run run = simulated_run(chain.priced(), step, options);
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
  const trace::Trace written = simulated_trace(chain.priced(), step, 1, options);
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
  EXPECT_THROW(simulated_run(chain.priced(), step, {}), RuntimeFault);
}

// One of eight ranks computes 1.3 times as long. By hand, for a rank whose layers take F forward
// and B backward (1000 and 2000; on the slow one 1300 and 2600), with an all-gather of 60 and a
// reduce-scatter of 90, and everything gathered once:
// - The all-gathers start at 0, 60 and 120, since they need nothing that is computed.
// - Forward ends at 60 + 3 F, and the backward of the last layer at 60 + 3 F + B: 5060, slow 6560.
//   The first reduce-scatter starts there on each rank, and ends at 6560 + 90 on all.
// - The second starts at 7060 and 9160, and ends at 9250.
// - The third is issued after compute has waited for the second: at 9250 instead of 9060, and on
// the
//   slow rank at 11760.
TEST(SimulatedRunTest, ASlowRankMakesTheOthersWaitInEveryReduction) {
  constexpr int64_t kRanks = 8, kSlow = 3;
  constexpr Nanoseconds kTransfer = 90;
  const Chain chain = make_chain({.layers = 3, .strategy = "shard_grad_op", .ranks = kRanks});
  std::vector<double> slowdown(kRanks, 1);
  slowdown[kSlow] = 1.3;
  const SimulatedStep step =
      chain.run({.forward = 1000, .backward = 2000, .all_gather = 60, .reduce_scatter = kTransfer},
                {.rank_slowdown = slowdown});
  trace::Run run = simulated_run(chain.priced(), step, {});
  const analysis::Analysis result = analysis::analyze(run, {.keep_timelines = true});
  const std::vector<Nanoseconds> gathers{0, 60, 120}, fast{5060, 7060, 9250},
      slow{6560, 9160, 11760};
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    std::vector<Nanoseconds> gathered, reduced, ends;
    for (const analysis::Collective& each :
         result.timelines[static_cast<size_t>(rank)].collectives) {
      const bool gather = each.kind == CollectiveKind::kAllGather;
      (gather ? gathered : reduced).push_back(each.when.start);
      if (!gather) {
        ends.push_back(each.when.end);
        EXPECT_EQ(each.transfer, kTransfer);
        EXPECT_EQ(each.last_rank, kSlow);
        EXPECT_EQ(each.last_start, slow[reduced.size() - 1]);
      }
    }
    EXPECT_EQ(gathered, gathers) << rank;
    EXPECT_EQ(reduced, rank == kSlow ? slow : fast) << rank;
    EXPECT_EQ(ends, (std::vector<Nanoseconds>{6650, 9250, 11850})) << rank;
    const analysis::StragglerFigures& late = result.matching.stragglers[static_cast<size_t>(rank)];
    EXPECT_EQ(late.last, rank == kSlow ? 3 : 0);
    EXPECT_EQ(late.held_up, rank == kSlow ? 1500 + 2100 + 2510 : 0);
  }
  ASSERT_EQ(result.matching.collectives.size(), 2U);
  for (const analysis::MatchedFigures& each : result.matching.collectives) {
    const bool gather = each.kind == CollectiveKind::kAllGather;
    EXPECT_EQ(each.count, 3);
    EXPECT_EQ(each.skew_median, gather ? 0 : 2100);
    EXPECT_EQ(each.skew_max, gather ? 0 : 2510);
    EXPECT_EQ(each.wait_median, gather ? 0 : 7 * 2100 / 8);  // seven of eight ranks wait
    EXPECT_EQ(each.transfer_median, gather ? 60 : kTransfer);
  }
}

}  // namespace
}  // namespace shardlens::sim::test
