#include "core/workload/routing.h"

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

}  // namespace
}  // namespace shardlens::plan
