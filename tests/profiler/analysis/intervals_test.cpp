#include "profiler/analysis/events/intervals.h"

#include <algorithm>
#include <bitset>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "profiler/analysis/events/sort_runs.h"

namespace shardlens::analysis {
namespace {

TEST(IntervalsTest, UnionMergesWhatOverlapsOrTouches) {
  EXPECT_EQ(union_of({{5, 8}, {0, 3}, {3, 4}, {7, 10}, {2, 2}}), (IntervalSet{{0, 4}, {5, 10}}));
  EXPECT_TRUE(union_of({}).empty());
  EXPECT_TRUE(union_of({{4, 4}}).empty());
}

TEST(IntervalsTest, IntersectionKeepsWhatBothHold) {
  EXPECT_EQ(intersect({{0, 5}, {8, 12}}, {{3, 9}, {11, 20}}),
            (IntervalSet{{3, 5}, {8, 9}, {11, 12}}));
  EXPECT_TRUE(intersect({{0, 5}}, {{5, 6}}).empty());  // half-open: they touch
}

TEST(IntervalsTest, DifferenceCutsHoles) {
  EXPECT_EQ(subtract({{0, 10}}, {{2, 3}, {5, 7}}), (IntervalSet{{0, 2}, {3, 5}, {7, 10}}));
  EXPECT_EQ(subtract({{0, 4}, {6, 9}}, {{3, 7}}), (IntervalSet{{0, 3}, {7, 9}}));
  EXPECT_TRUE(subtract({{1, 2}}, {{0, 3}}).empty());
}

TEST(IntervalsTest, LengthsAndMembershipAreHalfOpen) {
  const IntervalSet set{{0, 4}, {6, 9}};
  EXPECT_EQ(length_of(set), 7);
  EXPECT_EQ(length_within(set, {3, 7}), 2);
  EXPECT_EQ(length_within(set, {4, 6}), 0);
  EXPECT_TRUE(contains(set, 0));
  EXPECT_TRUE(contains(set, 8));
  EXPECT_FALSE(contains(set, 4));
  EXPECT_FALSE(contains(set, 9));
  EXPECT_FALSE(contains(set, -1));
}

constexpr int kInstants = 96;
using Instants = std::bitset<kInstants>;

Instants instants(const IntervalSet& set) {
  Instants out;
  for (const Interval& i : set) {
    for (Nanoseconds t = i.start; t < i.end; ++t) {
      out.set(static_cast<size_t>(t));
    }
  }
  return out;
}

bool is_canonical(const IntervalSet& set) {
  for (size_t i = 0; i < set.size(); ++i) {
    if (set[i].end <= set[i].start || (i > 0 && set[i].start <= set[i - 1].end)) {
      return false;
    }
  }
  return true;
}

// Compared with a set of single nanoseconds.
TEST(IntervalsTest, AgreesWithCountingEveryNanosecond) {
  std::mt19937 random(3);
  const auto draw = [&] {
    std::vector<Interval> list;
    for (size_t i = random() % 9; i > 0; --i) {
      const auto start = static_cast<Nanoseconds>(random() % kInstants);
      list.push_back({start, std::min<Nanoseconds>(
                                 kInstants, start + static_cast<Nanoseconds>(random() % 14))});
    }
    return list;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::vector<Interval> x = draw(), y = draw();
    Instants ix, iy;
    for (const Interval& i : x) {
      ix |= instants({i});
    }
    for (const Interval& i : y) {
      iy |= instants({i});
    }
    const IntervalSet a = union_of(x), b = union_of(y);
    ASSERT_EQ(instants(a), ix);
    ASSERT_EQ(instants(unite(a, b)), ix | iy);
    ASSERT_EQ(instants(intersect(a, b)), ix & iy);
    ASSERT_EQ(instants(subtract(a, b)), ix & ~iy);
    for (const IntervalSet& set : {a, unite(a, b), intersect(a, b), subtract(a, b)}) {
      ASSERT_TRUE(is_canonical(set));
    }
    ASSERT_EQ(length_of(a), static_cast<Nanoseconds>(ix.count()));
    const auto from = static_cast<Nanoseconds>(random() % kInstants);
    const auto to =
        std::min<Nanoseconds>(kInstants, from + static_cast<Nanoseconds>(random() % 30));
    ASSERT_EQ(length_within(a, {from, to}),
              static_cast<Nanoseconds>((ix & instants({{from, to}})).count()));
    ASSERT_EQ(instants(clip(a, {from, to})), ix & instants({{from, to}}));
    ASSERT_TRUE(is_canonical(clip(a, {from, to})));
    UnionBuilder builder;
    for (const Interval& i : x) {
      builder.add(i);
    }
    ASSERT_EQ(builder.take(), a);
    ASSERT_EQ(contains(a, from), ix.test(static_cast<size_t>(from)));
    NearSet near(a);  // whichever interval is asked for before
    for (int ask = 0; ask < 4; ++ask) {
      const auto at = static_cast<Nanoseconds>(random() % kInstants);
      ASSERT_EQ(near.contains(at), ix.test(static_cast<size_t>(at)));
      const auto end =
          std::min<Nanoseconds>(kInstants, at + static_cast<Nanoseconds>(random() % 30));
      ASSERT_EQ(near.length_within({at, end}),
                static_cast<Nanoseconds>((ix & instants({{at, end}})).count()));
    }
  }
}

// As std::stable_sort does it, whatever the number of runs.
TEST(SortRunsTest, SortsAndKeepsTheOrderOfEqualElements) {
  std::mt19937 random(1);
  for (size_t size = 0; size < 200; ++size) {
    const int values = 1 + static_cast<int>(random() % 50);
    std::vector<std::pair<int, size_t>> list;  // value, place
    for (size_t i = 0; i < size; ++i) {
      const int value = static_cast<int>(random()) % values;
      const bool goes_on = random() % 10 != 0 && !list.empty();
      list.emplace_back(goes_on ? std::max(list.back().first, value) : value, i);
    }
    const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
    auto expected = list;
    std::stable_sort(expected.begin(), expected.end(), before);
    sort_runs(list, before);
    EXPECT_EQ(list, expected);
  }
}

}  // namespace
}  // namespace shardlens::analysis
