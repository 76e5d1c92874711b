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
  const CollectiveCurve of_three = curve({{1000, 10}, {2000, 15}, {4000, 19}});
  EXPECT_DOUBLE_EQ(curve_us(of_three, 1000), 10);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 1500), 12.5);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 3000), 17);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 4000), 19);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 8000), 19 + 8);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 400), 10 - 0.6 * 5);
}

// From 2000 to 4000 bytes the time grows by more than in proportion, and so below 2000 bytes.
TEST(CollectiveCurve, NoSteeperThanInProportionOutsideOfThePoints) {
  const CollectiveCurve of_three = curve({{1000, 10}, {2000, 25}, {4000, 60}});
  EXPECT_DOUBLE_EQ(curve_us(of_three, 3000), 42.5);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 8000), 120);
  EXPECT_DOUBLE_EQ(curve_us(of_three, 100), 1);
}

// 4000 and 4400 bytes are too close for a bandwidth; 1000 bytes are not.
TEST(CollectiveCurve, TheBandwidthBeyondIsThatOverAtLeastTwiceTheSize) {
  EXPECT_DOUBLE_EQ(curve_us(curve({{1000, 26}, {4000, 30}, {4400, 43}}), 5400), 43 + 5);
  EXPECT_DOUBLE_EQ(curve_us(curve({{4000, 30}, {4400, 31}}), 8400), 31 + 10);
}

TEST(CollectiveCurve, NoSizeTakesLongerThanALargerOne) {
  const CollectiveCurve plain = non_decreasing(
      curve({{1000, 122}, {2000, 18}, {4000, 15}, {8000, 16}, {16000, 14.5}, {32000, 30}}));
  const std::vector<double> wanted{14.5, 14.5, 14.5, 14.5, 14.5, 30};
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_DOUBLE_EQ(plain.points[i].us, wanted[i]) << i;
  }
}

TEST(CollectiveCurve, SizesAreComparedWithTheNearestPoint) {
  const CollectiveCurve of_two = curve({{1000, 10}, {4000, 20}});
  EXPECT_DOUBLE_EQ(size_beyond(of_two, 500), 0.5);
  EXPECT_DOUBLE_EQ(size_beyond(of_two, 2500), 1);
  EXPECT_DOUBLE_EQ(size_beyond(of_two, 12000), 3);
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
