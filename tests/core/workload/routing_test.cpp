#include "core/workload/routing.h"

#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardlens::plan {
namespace {

using testing::ElementsAre;

TEST(RoutingTest, BalancedExpertsHaveTheSameRows) {
  EXPECT_EQ(route(1024, 8, 0).chosen, 8);
  EXPECT_EQ(route(1024, 8, 0).rows_of_each, 128);
  EXPECT_EQ(route(3, 8, 0).chosen, 3);  // fewer rows than experts
  EXPECT_EQ(route(3, 8, 0).rows_of_each, 1);
}

// Shares of 2/3 and 1/3: 256 and 128 rows, three tiles of 128 rows over two experts.
TEST(RoutingTest, SkewedExpertsHaveAsManyTilesAsTheirRows) {
  EXPECT_EQ(route(384, 2, 1).chosen, 2);
  EXPECT_EQ(route(384, 2, 1).rows_of_each, 3 * 128 / 2);
}

// 6/11, 3/11 and 2/11 of 11 rows: three tiles, though all rows would fit into one.
TEST(RoutingTest, EveryChosenExpertHasATileOfItsOwn) {
  EXPECT_EQ(route(11, 3, 1).chosen, 3);
  EXPECT_EQ(route(11, 3, 1).rows_of_each, 128);
}

TEST(RoutingTest, AStrongSkewChoosesOneExpert) {
  EXPECT_EQ(route(384, 8, 50).chosen, 1);
  EXPECT_EQ(route(384, 8, 50).rows_of_each, 384);
}

// Of tests/data/expert, and by hand.
TEST(RoutingTest, AllRowsAreGiven) {
  EXPECT_THAT(rows_of_experts(128, 4, 1), ElementsAre(61, 31, 21, 15));
  EXPECT_THAT(rows_of_experts(64, 4, 1), ElementsAre(31, 15, 10, 8));
  EXPECT_THAT(rows_of_experts(128, 4, 100), ElementsAre(128, 0, 0, 0));
  EXPECT_THAT(rows_of_experts(96, 6, 0), ElementsAre(16, 16, 16, 16, 16, 16));
}

// Each of two ranks sends 92 rows to the first and 36 to the second, so the first has 184; of its
// two experts 122 and 62, padded to 128 and 64. The tensor of rows has room for a group of 8 more
// for each expert.
TEST(RoutingTest, TheFullestRankHasItsRowsFromAllRanks) {
  const DividedRouting rows = route_over(128, 4, 2, 1);
  EXPECT_THAT(rows.sent, ElementsAre(92, 36));
  EXPECT_EQ(rows.own, 128);
  EXPECT_EQ(rows.received, 184);
  EXPECT_THAT(rows.rows_of_experts, ElementsAre(128, 64));
  EXPECT_EQ(rows.padded, 184 + 16);
}

TEST(RoutingTest, ExpertsWithoutRowsArePaddedToo) {
  EXPECT_THAT(route_over(128, 4, 2, 100).rows_of_experts, ElementsAre(256, 8));
  EXPECT_THAT(route_over(128, 4, 4, 0).rows_of_experts, ElementsAre(128));
}

// Of 8 experts two are chosen, on 4 ranks with two each: a rank has neither of them in 6·5 of 8·7
// cases. 112 tokens then go to 1 − 30/56 of 4 ranks each.
TEST(RoutingTest, ATokenIsSentOnceToEachRankWithItsExperts) {
  const DividedRouting rows = route_over(224, 8, 4, 0, false);
  const DividedRouting once = sent_once(rows, 112, 8, 2, std::nullopt);
  EXPECT_THAT(once.sent, ElementsAre(52, 52, 52, 52));
  EXPECT_EQ(once.own, 4 * 52);
  EXPECT_EQ(once.received, 4 * 52);
  EXPECT_EQ(once.returned, 112);
}

TEST(RoutingTest, RanksOfATokenMayBeGiven) {
  const DividedRouting once = sent_once(route_over(224, 8, 4, 0, false), 112, 8, 2, 1);
  EXPECT_THAT(once.sent, ElementsAre(28, 28, 28, 28));
  EXPECT_EQ(once.received, 112);
}

// All tokens choose the only expert that has rows, and its rank gets those of all four ranks.
TEST(RoutingTest, ARankWithAllRowsGetsAllTokensOnce) {
  const DividedRouting once = sent_once(route_over(224, 8, 4, 100, false), 112, 8, 2, std::nullopt);
  EXPECT_THAT(once.sent, ElementsAre(112, 0, 0, 0));
  EXPECT_EQ(once.received, 4 * 112);
}

}  // namespace
}  // namespace shardlens::plan
