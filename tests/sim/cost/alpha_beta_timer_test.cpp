#include "sim/cost/alpha_beta_timer.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

Nanoseconds all_gather(const std::string& spec, Bytes bytes, int ranks = 8) {
  return AlphaBetaTimer::parse(spec).duration(CollectiveKind::kAllGather, ranks, bytes);
}

TEST(AlphaBetaTimerTest, AddsLatencyAndMessageOverBandwidth) {
  // 5 us + 1e6 B / 10e9 B/s = 5 us + 100 us.
  EXPECT_EQ(all_gather("ab:5:10", 1'000'000), 105'000);
  // 12.5 us + 3 B / 40e9 B/s = 12500.075 ns.
  EXPECT_EQ(all_gather("ab:12.5:40", 3), 12'500);
  EXPECT_EQ(all_gather("ab:0:0.5", 4), 8);
}

TEST(AlphaBetaTimerTest, InfiniteBandwidthLeavesTheLatency) {
  EXPECT_EQ(all_gather("ab:5000:inf", Bytes{1} << 40), 5'000'000);
  EXPECT_EQ(all_gather("ab:0:inf", Bytes{1} << 40), 0);
}

TEST(AlphaBetaTimerTest, DoesNotDependOnKindOrRanks) {
  const AlphaBetaTimer timer = AlphaBetaTimer::parse("ab:7:2");
  const Nanoseconds expected = 7'000 + 500;
  for (const int ranks : {1, 2, 1000}) {
    EXPECT_EQ(timer.duration(CollectiveKind::kReduceScatter, ranks, 1000), expected);
    EXPECT_EQ(timer.duration(CollectiveKind::kBroadcast, ranks, 1000), expected);
  }
}

TEST(AlphaBetaTimerTest, EmptyMessageTakesTheLatencyAndHugeOnesDoNotOverflow) {
  EXPECT_EQ(all_gather("ab:3:1", 0), 3'000);
  EXPECT_GT(all_gather("ab:3600000000:1e-300", std::numeric_limits<Bytes>::max()), 0);
}

TEST(AlphaBetaTimerTest, RefusesWhatItCannotRead) {
  for (const char* spec : {"", "ab", "ab:", "ab:5", "ab:5:", "ab::10", "ab:5:0", "ab:5:-1",
                           "ab:-5:1", "ab:inf:1", "ab:nan:1", "ab:5:nan", "ab:5x:1", "ab:5:1x",
                           "ab:5:1:1", "ab: 5:1", "ab:1e300:1", "8xA100", "AB:5:1"}) {
    try {
      (void)AlphaBetaTimer::parse(spec);
      ADD_FAILURE() << spec << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_THAT(error.what(), testing::HasSubstr("ab:MICROSECONDS:GBPS")) << spec;
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string("'") + spec + "'")) << spec;
    }
  }
}

}  // namespace
}  // namespace shardlens::sim
