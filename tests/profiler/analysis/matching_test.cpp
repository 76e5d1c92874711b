// Collectives of several ranks, worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "profiler/analysis/figures/bandwidth.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using testing::HasSubstr;
using testing::Not;

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

// A collective of another kind on one rank matches nothing, and does not shift the others.
TEST(MatchingTest, WhatDiffersIsSaidAndNotMatched) {
  using enum CollectiveKind;
  std::vector<trace::Trace> traces;
  traces.push_back(
      rank_of(0, {{10, 20, kAllGather}, {30, 40, kAllGather}, {50, 60, kAllGather}}, false));
  traces.push_back(
      rank_of(1, {{10, 20, kAllGather}, {30, 40, kReduceScatter}, {50, 60, kAllGather}}, false));
  const Analysis result = analyzed(std::move(traces));
  EXPECT_EQ(result.matching.clocks.at(0).collectives, 2);
  EXPECT_THAT(result.diagnostics,
              testing::Contains(testing::AllOf(
                  testing::Field(&trace::Diagnostic::message, HasSubstr("without a counterpart")),
                  testing::Field(&trace::Diagnostic::count, 2))));
}

TEST(MatchingTest, NumbersThatDifferAreSaidAndNotMatched) {
  using enum CollectiveKind;
  std::vector<trace::Trace> traces;
  traces.push_back(rank_of(0, {{10, 20, kAllGather}, {30, 40, kAllGather}}));
  traces.push_back(rank_of(1, {{10, 20, kAllGather}, {30, 40, kReduceScatter}}));
  const Analysis result = analyzed(std::move(traces));
  EXPECT_EQ(result.matching.clocks.at(0).collectives, 1);
  EXPECT_THAT(result.diagnostics,
              testing::Contains(
                  testing::Field(&trace::Diagnostic::message,
                                 testing::AllOf(HasSubstr("all_gather of 400 bytes on rank 0"),
                                                HasSubstr("reduce_scatter of 400 bytes on rank 1"),
                                                HasSubstr("not matched")))));
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

// The second trace counts from its own beginning, so its numbers are those of other collectives.
TEST(MatchingTest, IdentifiersTakePrecedenceOverNumbers) {
  std::vector<trace::Trace> traces;
  traces.push_back(rank_of(0, {{10, 20}, {30, 40}}));
  traces.push_back(rank_of(1, {{135, 140}}));
  traces[0].collectives[0].comms_id = 7;
  traces[0].collectives[1].comms_id = 9;
  traces[1].collectives[0].comms_id = 9;
  const Analysis result = analyzed(std::move(traces));
  EXPECT_EQ(result.matching.clocks.at(0).collectives, 1);
  EXPECT_EQ(result.matching.clocks.at(1).offset, 100);
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

// A part of a collective of one of several process groups.
struct InGroup {
  std::string group;
  Nanoseconds start, end;
  CollectiveKind kind = CollectiveKind::kAllGather;
  int64_t number = -1;
  int64_t elements = 100;
};

trace::Trace rank_in_groups(int64_t rank, const std::vector<InGroup>& parts) {
  TraceBuilder b(rank);
  b.op("aten::mm", 0, 2000);
  for (const InGroup& part : parts) {
    b.communication(
        {.kind = part.kind, .fqn = "", .start = part.start, .end = part.end, .group = part.group},
        0);
  }
  trace::Trace trace = b.finish();
  for (size_t i = 0; i < parts.size(); ++i) {
    trace.collectives[i].sequence = parts[i].number;
    trace.collectives[i].in_nelems = trace.collectives[i].out_nelems = parts[i].elements;
  }
  return trace;
}

// Two nodes of two ranks; parameters are sharded within a node, gradients reduced across nodes. The
// clocks of the second node are a second ahead. Most collectives are within a node, where the
// clocks agree, so only the graph of all groups shows the second.
TEST(MatchingTest, ClocksAreSolvedOverSeveralGroups) {
  constexpr Nanoseconds kAhead = 1'000'000'000;
  std::vector<trace::Trace> traces;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const int64_t node = rank / 2, within = rank % 2;
    const Nanoseconds ahead = node * kAhead;
    std::vector<InGroup> parts;
    for (int64_t i = 0; i < 5; ++i) {
      parts.push_back({"shard " + std::to_string(node), ahead + i * 1000 + 10 * rank,
                       ahead + i * 1000 + 500, CollectiveKind::kAllGather, i});
    }
    parts.push_back({"replicate " + std::to_string(within), ahead + 9000 + 10 * rank, ahead + 9500,
                     CollectiveKind::kAllReduce, 0});
    traces.push_back(rank_in_groups(rank, parts));
  }
  const Matching m = analyzed(std::move(traces)).matching;
  ASSERT_EQ(m.clocks.size(), 4U);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(m.clocks[rank].offset, rank < 2 ? 0 : kAhead);
    EXPECT_EQ(m.clocks[rank].spread, 0);
    EXPECT_EQ(m.clocks[rank].residual, 0);
    EXPECT_EQ(m.clocks[rank].reference, 0);
    EXPECT_EQ(m.clocks[rank].collectives, 6);
  }
  // Ranks 1 and 3 begin last, 10 ns after their neighbour in five all-gathers; ranks 2 and 3 begin
  // their all-reduce 20 ns after ranks 0 and 1.
  EXPECT_EQ(m.stragglers[0].held_up, 0);
  EXPECT_EQ(m.stragglers[1].held_up, 50);
  EXPECT_EQ(m.stragglers[2].held_up, 20);
  EXPECT_EQ(m.stragglers[3].held_up, 50 + 20);
}

TEST(MatchingTest, UnconnectedRanksHaveReferencesOfTheirOwn) {
  std::vector<trace::Trace> traces;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const Nanoseconds ahead = rank == 3 ? 700 : rank == 2 ? 5000 : 0;
    traces.push_back(rank_in_groups(rank, {{"pair " + std::to_string(rank / 2), ahead + 100,
                                            ahead + 200, CollectiveKind::kAllGather, 0}}));
  }
  const Matching m = analyzed(std::move(traces)).matching;
  EXPECT_EQ(m.clocks.at(1).reference, 0);
  EXPECT_EQ(m.clocks.at(2).reference, 2);
  EXPECT_EQ(m.clocks.at(2).offset, 5000 - 700);
  EXPECT_EQ(m.clocks.at(3).offset, 0);
}

// Each rank leaves an uneven all-to-all when its own data is there. It must not move the clocks.
TEST(MatchingTest, UnevenAllToAllsDoNotMoveClocks) {
  std::vector<trace::Trace> traces;
  for (int64_t rank = 0; rank < 2; ++rank) {
    std::vector<InGroup> parts;
    for (int64_t i = 0; i < 9; ++i) {
      parts.push_back({"experts", i * 1000, i * 1000 + 300 + 200 * rank, CollectiveKind::kAllToAll,
                       i, 100 + 50 * rank});
    }
    parts.push_back({"shard", 20'000, 20'100, CollectiveKind::kAllGather, 0});
    traces.push_back(rank_in_groups(rank, parts));
  }
  const Matching m = analyzed(std::move(traces)).matching;
  EXPECT_EQ(m.clocks.at(0).offset, 0);
  EXPECT_EQ(m.clocks.at(1).offset, 0);
  EXPECT_EQ(m.clocks.at(1).collectives, 10);
}

// Twelve collectives of one size, about one millisecond apart.
std::vector<InGroup> a_millisecond_apart() {
  std::vector<InGroup> parts;
  Nanoseconds at = 0;
  for (int64_t i = 0; i < 12; ++i) {
    at += 1'000'000 + (i * 7919) % 97 * 1000;  // not quite regular, as in real steps
    parts.push_back({"shard", at - 200'000, at});
  }
  return parts;
}

// Without sequence numbers, a trace that lost its first collective still matches from the second
// on. All have one size, and about one millisecond between them.
TEST(MatchingTest, ALostFirstEventShiftsNothing) {
  const std::vector<InGroup> parts = a_millisecond_apart();
  for (const auto& [lost, ahead] :
       {std::pair<size_t, Nanoseconds>{0, 0}, {0, 40'000}, {5, -3000}}) {
    std::vector<InGroup> others = parts;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(lost));
    for (InGroup& each : others) {
      each.start += ahead;
      each.end += ahead;
    }
    std::vector<trace::Trace> traces;
    traces.push_back(rank_in_groups(0, parts));
    traces.push_back(rank_in_groups(1, others));
    const Analysis result = analyzed(std::move(traces));
    EXPECT_EQ(result.matching.clocks.at(1).offset - result.matching.clocks.at(0).offset, ahead);
    EXPECT_EQ(result.matching.clocks.at(1).collectives, 11);
    EXPECT_EQ(result.matching.clocks.at(1).spread, 0);
    EXPECT_EQ(result.matching.collectives.at(0).skew_max, 0);
  }
}

std::vector<InGroup> without(std::vector<InGroup> parts, const std::vector<size_t>& lost) {
  for (auto it = lost.rbegin(); it != lost.rend(); ++it) {
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(*it));
  }
  return parts;
}

// Two collectives are nearer to each other than half of the usual distance, and the other rank lost
// the first of them. Its part of the second one belongs to the nearer of both.
TEST(MatchingTest, APartBelongsToTheNearest) {
  std::vector<InGroup> parts = a_millisecond_apart();
  parts[5] = {"shard", parts[6].start - 300'000, parts[6].end - 300'000};
  std::vector<trace::Trace> traces;
  traces.push_back(rank_in_groups(0, parts));
  traces.push_back(rank_in_groups(1, without(parts, {5})));
  const Analysis result = analyzed(std::move(traces));
  EXPECT_EQ(result.matching.clocks.at(1).offset - result.matching.clocks.at(0).offset, 0);
  EXPECT_EQ(result.matching.clocks.at(0).collectives, 11);
  EXPECT_EQ(result.matching.clocks.at(1).collectives, 11);
  EXPECT_EQ(result.matching.collectives.at(0).skew_max, 0);
}

// The rank that has most collectives lost one that both others have.
TEST(MatchingTest, WhatTheFullestRankLostIsMatchedAmongOthers) {
  const std::vector<InGroup> parts = a_millisecond_apart();
  std::vector<InGroup> ahead = without(parts, {8, 9});
  for (InGroup& each : ahead) {
    each.start += 40'000;
    each.end += 40'000;
  }
  std::vector<trace::Trace> traces;
  traces.push_back(rank_in_groups(0, without(parts, {5})));
  traces.push_back(rank_in_groups(1, without(parts, {0, 1})));
  traces.push_back(rank_in_groups(2, ahead));
  const Analysis result = analyzed(std::move(traces));
  EXPECT_EQ(result.matching.clocks.at(0).collectives, 11);
  EXPECT_EQ(result.matching.clocks.at(1).collectives, 10);
  EXPECT_EQ(result.matching.clocks.at(2).collectives, 10);
  EXPECT_EQ(result.matching.clocks.at(2).offset - result.matching.clocks.at(0).offset, 40'000);
  EXPECT_EQ(result.matching.collectives.at(0).skew_max, 0);
  EXPECT_THAT(result.diagnostics, Not(testing::Contains(testing::Field(&trace::Diagnostic::message,
                                                                       HasSubstr("counterpart")))));
}

// Two processes of one machine, each with two communication threads that share two cores: one
// rank's all-reduces end up to 13 ms after the other's begin to be late, with less than 1 ms
// between them. Their sizes, 16384, 22080, 15168, 19264, 22016 and 28800 elements, fit in one order
// only.
TEST(MatchingTest, SizesThatFitInOneOrderNeedNoTimes) {
  const Analysis result =
      analyze(trace::Run::open(SHARDLENS_TEST_DATA "/pytorch_traces/ddp-buckets"));
  for (const ClockFigures& clock : result.matching.clocks) {
    EXPECT_EQ(clock.collectives, 2 * 6 + 2);  // and a broadcast in each step
    EXPECT_LT(std::abs(clock.offset), 1'000'000);
  }
  for (const trace::Diagnostic& each : result.diagnostics) {
    EXPECT_THAT(each.message, Not(HasSubstr("counterpart")));
  }
}

// All of a kind have one of two sizes, but each belongs to a unit. The ends that the two processes
// of one machine saw differ by up to 4 ms, but only differences from -0.21 to 0.17 ms let all of
// them run on both at one time.
TEST(MatchingTest, UnitsTellCollectivesOfOneSizeApart) {
  const Analysis result =
      analyze(trace::Run::open(SHARDLENS_TEST_DATA "/pytorch_traces/fsdp2-default"));
  for (const ClockFigures& clock : result.matching.clocks) {
    EXPECT_EQ(clock.collectives, 2 * (5 + 3));  // gathers and reductions of two steps
    EXPECT_LT(std::abs(clock.offset), 220'000);
  }
}

// Eight ranks that send to and receive from all others, as a recommender's tables do: recorded as
// sends without a group. They ran together, so they are one collective.
TEST(MatchingTest, SendsOfAllRanksAtOnceAreMatched) {
  std::vector<trace::Trace> traces, apart;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const std::vector<InGroup> parts{{"", 100 + 10 * rank, 300, CollectiveKind::kSendRecv},
                                     {"", 500, 600 + rank, CollectiveKind::kSendRecv},
                                     {"world", 900, 950, CollectiveKind::kAllReduce, 0}};
    traces.push_back(rank_in_groups(rank, parts));
    const Nanoseconds later = rank < 2 ? 0 : 50'000'000;
    apart.push_back(rank_in_groups(
        rank, {{"", later + 100, later + 300, CollectiveKind::kSendRecv}, parts.back()}));
  }
  EXPECT_EQ(analyzed(std::move(traces)).matching.clocks.at(0).collectives, 3);
  EXPECT_EQ(analyzed(std::move(apart)).matching.clocks.at(0).collectives, 1);
}

// A wrong number matches collectives that ran at different times; the clocks of the others show it.
TEST(MatchingTest, CollectivesThatDidNotRunTogetherAreNotMatched) {
  std::vector<trace::Trace> traces;
  for (int64_t rank = 0; rank < 2; ++rank) {
    std::vector<InGroup> parts;
    for (int64_t i = 0; i < 5; ++i) {
      parts.push_back({"a", i * 1'000'000, i * 1'000'000 + 1000, CollectiveKind::kAllGather, i});
    }
    const Nanoseconds wrong = 7'000'000 + 5'000'000 * rank;
    parts.push_back({"b", wrong, wrong + 1000, CollectiveKind::kAllReduce, 3});
    traces.push_back(rank_in_groups(rank, parts));
  }
  const Analysis result = analyzed(std::move(traces));
  EXPECT_EQ(result.matching.clocks.at(1).offset, 0);
  EXPECT_EQ(result.matching.clocks.at(1).collectives, 5);
  EXPECT_EQ(result.matching.stragglers.at(1).held_up, 0);
}

}  // namespace
}  // namespace shardlens::analysis
