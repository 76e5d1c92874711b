// When middle microbatches may be counted instead of simulated, and when they may not.
#include "sim/engine/alike.h"

#include <gtest/gtest.h>

#include "core/schedule/planned/microbatches.h"
#include "tests/sim/engine/chain.h"

namespace shardlens::sim::test {
namespace {

constexpr Durations kDurations{.forward = 10'000,
                               .backward = 20'000,
                               .all_gather = 6'000,
                               .reduce_scatter = 9'000,
                               .copy = 300,
                               .issue_operator = 50,
                               .issue_action = 20};

Chain chain(int microbatches) {
  return make_chain({.layers = 4, .accumulate = microbatches});
}

TEST(AlikeTest, ThePeriodIsWhatOneMoreTakes) {
  const Chain four = chain(4);
  const SimulatedStep step = four.run(kDurations);
  const std::optional<Nanoseconds> period = period_of(four.step, step.ranks[0].items);
  ASSERT_TRUE(period);
  EXPECT_EQ(*period, chain(5).run(kDurations).duration - step.duration);
  const SimulatedStep nine = four.run(kDurations, {.more_microbatches = 5});
  EXPECT_TRUE(nine.alike);
  EXPECT_EQ(nine.duration, chain(9).run(kDurations).duration);
  EXPECT_EQ(nine.ranks[0].figures, chain(9).run(kDurations).ranks[0].figures);
}

TEST(AlikeTest, AnythingThatTakesAnotherTimeIsNone) {
  const Chain four = chain(4);
  const std::vector<ItemTimes> items = four.run(kDurations).ranks[0].items;
  const std::vector<size_t> begins = schedule::microbatches(four.step);
  ASSERT_EQ(begins.size(), 4U);
  size_t tried = 0;
  for (size_t i = begins[2]; i < begins[3]; i += 7) {
    std::vector<ItemTimes> other = items;
    if (other[i].stream.end >= 0) {
      ++other[i].stream.end;
      EXPECT_FALSE(period_of(four.step, other)) << "stream of item " << i;
      ++tried;
    }
    other = items;
    if (other[i].host.start >= 0) {
      ++other[i].host.start;
      EXPECT_FALSE(period_of(four.step, other)) << "host of item " << i;
      ++tried;
    }
  }
  EXPECT_GT(tried, 10U);
}

TEST(AlikeTest, NeedsTheFourThatWerePlanned) {
  for (const int microbatches : {1, 3, 5}) {
    const Chain other = chain(microbatches);
    EXPECT_FALSE(period_of(other.step, other.run(kDurations).ranks[0].items)) << microbatches;
  }
  const Chain four = chain(4);
  EXPECT_FALSE(period_of(four.step, {}));
}

// Hosts that are ahead of the device, as fast as the device, and behind it.
TEST(AlikeTest, CountsRightOrNotAtAll) {
  int counted = 0, refused = 0;
  for (const Nanoseconds issue : {0, 50, 1'000, 5'000, 12'000, 40'000}) {
    Durations durations = kDurations;
    durations.issue_operator = issue;
    const SimulatedStep nine = chain(4).run(durations, {.more_microbatches = 5});
    (nine.alike ? counted : refused) += 1;
    if (nine.alike) {
      EXPECT_EQ(nine.duration, chain(9).run(durations).duration) << issue;
    }
  }
  EXPECT_GT(counted, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace shardlens::sim::test
