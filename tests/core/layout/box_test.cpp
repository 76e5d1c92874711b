#include "core/layout/box.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardlens {
namespace {

using testing::ElementsAre;

TEST(BoxTest, ARangeOfAMatrixIsAtMostThreeBoxes) {
  // Rows of 4: elements 2 … 13 are the end of row 0, rows 1 and 2, and the beginning of row 3.
  const std::vector<int64_t> shape{5, 4};
  EXPECT_THAT(boxes_of(shape, 2, 14),
              ElementsAre(Box{{0, 2}, {1, 2}}, Box{{1, 0}, {2, 4}}, Box{{3, 0}, {1, 2}}));
  EXPECT_THAT(boxes_of(shape, 4, 8), ElementsAre(Box{{1, 0}, {1, 4}}));
  EXPECT_THAT(boxes_of(shape, 5, 7), ElementsAre(Box{{1, 1}, {1, 2}}));
  EXPECT_THAT(boxes_of(shape, 0, 20), ElementsAre(Box{{0, 0}, {5, 4}}));
  EXPECT_THAT(boxes_of(shape, 7, 7), ElementsAre());
}

TEST(BoxTest, AScalarIsOneBoxWithoutDimensions) {
  EXPECT_THAT(boxes_of({}, 0, 1), ElementsAre(Box{}));
  EXPECT_EQ(Box{}.numel(), 1);
}

// Every range of small tensors: the boxes have exactly its elements, in order.
TEST(BoxTest, BoxesHaveTheElementsOfTheRangeInOrder) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {6}, {3, 4}, {2, 3, 4}, {1, 5, 1, 2}, {2, 2, 2, 2}}) {
    const int64_t numel = numel_of(shape);
    for (int64_t begin = 0; begin <= numel; ++begin) {
      for (int64_t end = begin; end <= numel; ++end) {
        std::vector<int64_t> seen;
        for (const Box& box : boxes_of(shape, begin, end)) {
          for_each_run(box, shape, 0, numel, [&](int64_t first, int64_t in_box, int64_t count) {
            EXPECT_EQ(in_box, 0) << "contiguous";
            EXPECT_EQ(count, box.numel());
            for (int64_t i = 0; i < count; ++i) {
              seen.push_back(first + i);
            }
          });
        }
        std::vector<int64_t> expected(static_cast<size_t>(end - begin));
        std::iota(expected.begin(), expected.end(), begin);
        EXPECT_EQ(seen, expected);
      }
    }
  }
}

TEST(BoxTest, TheRangeOfABoxReachesFromItsFirstElementToItsLast) {
  EXPECT_EQ(range_of({{0, 1}, {3, 2}}, std::vector<int64_t>{3, 4}),
            std::pair(int64_t{1}, int64_t{11}));
  EXPECT_EQ(range_of({{2, 0}, {0, 4}}, std::vector<int64_t>{3, 4}),
            std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(range_of({}, {}), std::pair(int64_t{0}, int64_t{1}));
}

// Columns 1 and 2 of a 3 x 4 matrix, as a tensor that is split along its last dimension.
TEST(BoxTest, ABlockOfColumnsHasARunInEachRow) {
  std::vector<std::vector<int64_t>> runs;
  for_each_run({{0, 1}, {3, 2}}, std::vector<int64_t>{3, 4}, 2, 10,
               [&](int64_t tensor, int64_t box, int64_t count) {
                 runs.push_back({tensor, box, count});
               });
  EXPECT_THAT(runs, ElementsAre(ElementsAre(2, 1, 1), ElementsAre(5, 2, 2), ElementsAre(9, 4, 1)));
}

}  // namespace
}  // namespace shardlens
