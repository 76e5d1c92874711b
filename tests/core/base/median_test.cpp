#include "core/base/median.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace shardlens {
namespace {

TEST(MedianTest, OfAnOddNumberIsTheValueInTheMiddle) {
  std::vector<int64_t> values{9, 1, 5};
  EXPECT_EQ(lower_median(values), 5);
  EXPECT_EQ(upper_median(values), 5);
  EXPECT_EQ(median(values), 5);
  values = {7};
  EXPECT_EQ(lower_median(values), 7);
  EXPECT_EQ(upper_median(values), 7);
  EXPECT_EQ(median(values), 7);
}

// Every order of the values, of which two are equal.
TEST(MedianTest, OfAnEvenNumberIsBetweenTheTwoInTheMiddle) {
  std::vector<int64_t> order{1, 4, 4, 9, 11, 30};
  do {
    const std::vector<int64_t> values = order;
    EXPECT_EQ(lower_median(values), 4);
    EXPECT_EQ(upper_median(values), 9);
    EXPECT_EQ(median(values), 6);  // 6.5
    EXPECT_EQ(values, order);
  } while (std::ranges::next_permutation(order).found);
  std::vector<double> values{2.5, -1};
  EXPECT_EQ(lower_median(values), -1);
  EXPECT_EQ(upper_median(values), 2.5);
  EXPECT_EQ(median(values), 0.75);
}

}  // namespace
}  // namespace shardlens
