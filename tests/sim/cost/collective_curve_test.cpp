#include "sim/cost/collective_curve.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace shardlens::sim {
namespace {

CollectiveCurve curve(std::vector<CollectiveCurve::Point> points) {
  return {CollectiveKind::kAllGather, 2, std::move(points)};
}

TEST(CollectiveCurve, LinearInBytes) {
  const CollectiveCurve of_three = curve({{1000, 10}, {2000, 20}, {4000, 60}});
  EXPECT_DOUBLE_EQ(curve_us(of_three, 1), 10);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 1000), 10);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 1500), 15);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 3000), 40);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 4000), 60);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 8000), 60 + 80);
}

TEST(CollectiveCurve, OnePointInProportion) {
  const CollectiveCurve of_one = curve({{1000, 10}});
  EXPECT_DOUBLE_EQ(curve_us(of_one, 500), 5);
  EXPECT_DOUBLE_EQ(curve_us(of_one, 3000), 30);
}

// Sizes that took the same time do not determine the bandwidth beyond them.
TEST(CollectiveCurve, BeyondAPlateau) {
  EXPECT_DOUBLE_EQ(curve_us(curve({{1000, 10}, {2000, 40}, {4000, 40}}), 7000), 40 + 30);
  EXPECT_DOUBLE_EQ(curve_us(curve({{1000, 40}, {4000, 40}}), 8000), 80);
}

}  // namespace
}  // namespace shardlens::sim
