#include "core/base/divisors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardlens {
namespace {

using testing::ElementsAre;

TEST(Divisors, AreSortedAndCountedOnce) {
  EXPECT_THAT(divisors(1), ElementsAre(1));
  EXPECT_THAT(divisors(7), ElementsAre(1, 7));
  EXPECT_THAT(divisors(36), ElementsAre(1, 2, 3, 4, 6, 9, 12, 18, 36));
}

TEST(Divisors, AreShownAsAChoice) {
  EXPECT_EQ(one_of(divisors(4)), "one of 1, 2, 4");
  EXPECT_EQ(one_of(divisors(1)), "1");
}

}  // namespace
}  // namespace shardlens
