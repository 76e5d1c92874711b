#include "core/workload/routing.h"

#include <gtest/gtest.h>

namespace shardlens::plan {
namespace {

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

}  // namespace
}  // namespace shardlens::plan
