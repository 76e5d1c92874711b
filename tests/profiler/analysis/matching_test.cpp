// Collectives of several ranks, worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "profiler/analysis/overlap/bandwidth.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using testing::HasSubstr;

struct Span {
  Nanoseconds start, end;
  CollectiveKind kind = CollectiveKind::kAllGather;
};

trace::Trace rank_of(int64_t rank, const std::vector<Span>& spans, bool numbered = true) {
  TraceBuilder b(rank);
  b.op("aten::mm", 0, 2000);
  for (const Span& span : spans) {
    b.communication({.kind = span.kind, .fqn = "", .start = span.start, .end = span.end}, 0);
  }
  trace::Trace trace = b.finish();
  for (trace::CollectiveArgs& args : trace.collectives) {
    args.sequence = numbered ? args.sequence : -1;
    args.group_size = 3;
  }
  return trace;
}

Analysis analyzed(std::vector<trace::Trace> traces) {
  return analyze(trace::Run::of(std::move(traces)));
}

// Three ranks; rank 2's clock is 1000 ahead. All end together, except for 3 ns of noise once.
TEST(MatchingTest, ClocksSkewAndWaits) {
  std::vector<trace::Trace> traces;
  traces.push_back(rank_of(0, {{100, 200}, {300, 400}, {500, 600}}));
  traces.push_back(rank_of(1, {{150, 200}, {310, 403}, {560, 600}}));
  traces.push_back(rank_of(2, {{1180, 1200}, {1320, 1400}, {1510, 1600}}));
  const Analysis result = analyzed(std::move(traces));
  const Matching& m = result.matching;
  ASSERT_EQ(m.clocks.size(), 3U);
  EXPECT_EQ(m.clocks[0].offset, 0);
  EXPECT_EQ(m.clocks[1].offset, 0);
  EXPECT_EQ(m.clocks[2].offset, 1000);
  EXPECT_EQ(m.clocks[1].spread, 0);  // the median: once 3, twice 0
  EXPECT_EQ(m.clocks[0].collectives, 3);
  // Last: rank 2 by 180 - 150 and by 320 - 310, rank 1 by 560 - 510.
  EXPECT_EQ(m.stragglers[0].last, 0);
  EXPECT_EQ(m.stragglers[1].last, 1);
  EXPECT_EQ(m.stragglers[1].held_up, 50);
  EXPECT_EQ(m.stragglers[2].last, 2);
  EXPECT_EQ(m.stragglers[2].held_up, 30 + 10);
  // Shortest durations: 20, 80, 40.
  const KindFigures& first = result.ranks[0].figures.collectives.at(CollectiveKind::kAllGather);
  EXPECT_EQ(first.matched, 3);
  EXPECT_EQ(first.transfer, 20 + 80 + 40);
  EXPECT_EQ(first.wait, 80 + 20 + 60);
  ASSERT_EQ(m.collectives.size(), 1U);
  EXPECT_EQ(m.collectives[0].count, 3);
  EXPECT_EQ(m.collectives[0].transfer_median, 40);
  EXPECT_EQ(m.collectives[0].skew_max, 80);     // 180 - 100
  EXPECT_EQ(m.collectives[0].skew_median, 60);  // 80, 20, 60
  EXPECT_EQ(m.collectives[0].wait_median,
            36);  // means 170/3 - 20, 273/3 - 80, 230/3 - 40: 36, 11, 36
}

TEST(MatchingTest, BandwidthsFollowNcclTests) {
  std::vector<trace::Trace> traces;
  traces.push_back(rank_of(0, {{100, 200}}));
  traces.push_back(rank_of(1, {{150, 200}}));
  const Analysis result = analyzed(std::move(traces));
  // 100 floats in 50 ns; a group of three.
  const KindFigures& k = result.ranks[0].figures.collectives.at(CollectiveKind::kAllGather);
  EXPECT_DOUBLE_EQ(*k.algbw, 400.0 / 50);
  EXPECT_DOUBLE_EQ(*k.busbw, 400.0 / 50 * 2 / 3);
  EXPECT_DOUBLE_EQ(*bus_factor(CollectiveKind::kAllReduce, 8), 2 * 7.0 / 8);
  EXPECT_DOUBLE_EQ(*bus_factor(CollectiveKind::kReduceScatter, 8), 7.0 / 8);
  EXPECT_DOUBLE_EQ(*bus_factor(CollectiveKind::kAllToAll, 4), 3.0 / 4);
  EXPECT_DOUBLE_EQ(*bus_factor(CollectiveKind::kBroadcast, 8), 1);
  EXPECT_EQ(bus_factor(CollectiveKind::kBarrier, 8), std::nullopt);
  EXPECT_EQ(bus_factor(CollectiveKind::kAllReduce, 0), std::nullopt);
}

// Without sequence numbers, the n-th collectives of all ranks match, until one differs.
TEST(MatchingTest, WhatDiffersIsSaidAndNotMatched) {
  using enum CollectiveKind;
  std::vector<trace::Trace> traces;
  traces.push_back(
      rank_of(0, {{10, 20, kAllGather}, {30, 40, kAllGather}, {50, 60, kAllGather}}, false));
  traces.push_back(
      rank_of(1, {{10, 20, kAllGather}, {30, 40, kReduceScatter}, {50, 60, kAllGather}}, false));
  const Analysis result = analyzed(std::move(traces));
  EXPECT_EQ(result.matching.clocks.at(0).collectives, 1);
  EXPECT_THAT(result.diagnostics,
              testing::Contains(
                  testing::Field(&trace::Diagnostic::message,
                                 testing::AllOf(HasSubstr("all_gather of 400 bytes on rank 0"),
                                                HasSubstr("reduce_scatter of 400 bytes on rank 1"),
                                                HasSubstr("not matched from there on")))));
}

TEST(MatchingTest, NumbersMatchTracesThatBeginAtOtherPlaces) {
  std::vector<trace::Trace> traces;
  traces.push_back(rank_of(0, {{10, 20}, {30, 40}, {50, 60}}));
  trace::Trace second = rank_of(1, {{35, 40}, {55, 60}});
  second.collectives[0].sequence = 1;
  second.collectives[1].sequence = 2;
  traces.push_back(std::move(second));
  const Analysis result = analyzed(std::move(traces));
  EXPECT_EQ(result.matching.clocks.at(0).collectives, 2);
  EXPECT_EQ(result.matching.clocks.at(1).offset, 0);
}

TEST(MatchingTest, OneTraceAndEmulatedRanksMatchNothing) {
  std::vector<trace::Trace> one;
  one.push_back(rank_of(0, {{10, 20}}));
  EXPECT_TRUE(analyzed(std::move(one)).matching.clocks.empty());
  std::vector<trace::Trace> emulated;
  for (int64_t rank = 0; rank < 2; ++rank) {
    emulated.push_back(rank_of(rank, {{10, 20}}));
    emulated.back().collectives[0].emulated = true;
  }
  EXPECT_TRUE(analyzed(std::move(emulated)).matching.clocks.empty());
}

}  // namespace
}  // namespace shardlens::analysis
