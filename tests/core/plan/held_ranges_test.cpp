#include "core/plan/held_ranges.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Shapes = std::vector<std::vector<int64_t>>;

const Shapes kLinears{{7, 5}, {7}, {5, 7}, {5}};

TEST(HeldRangesTest, FlatRangesCrossRanks) {
  // [0, 35) pad [36, 43) pad [44, 79) pad [80, 85) pad, in shards of 29.
  const ShardLayout layout(Layout::kFlat, kLinears, 3, DType::kF32);
  EXPECT_THAT(held_ranges(layout, 3, 0),
              ElementsAre(HeldRange{{0, 3, 1}, 0, 29, 0}, HeldRange{{1, 3, 1}, 29, 35, 0}));
  EXPECT_THAT(held_ranges(layout, 3, 1), ElementsAre(HeldRange{{1, 3, 1}, 0, 7, 7}));
  EXPECT_THAT(held_ranges(layout, 3, 2),
              ElementsAre(HeldRange{{1, 3, 1}, 0, 14, 15}, HeldRange{{2, 3, 1}, 14, 35, 0}));
  EXPECT_THAT(held_ranges(layout, 3, 3), ElementsAre(HeldRange{{2, 3, 1}, 0, 5, 22}));
  EXPECT_THAT(padding_ranges(layout, 3),
              ElementsAre(HeldRange{{1, 3, 1}, 0, 1, 6}, HeldRange{{1, 3, 1}, 0, 1, 14},
                          HeldRange{{2, 3, 1}, 0, 1, 21}, HeldRange{{2, 3, 1}, 0, 2, 27}));
}

TEST(HeldRangesTest, ReplicasHoldTheSame) {
  const ShardLayout layout(Layout::kFlat, Shapes{{6}}, 2, DType::kF32);
  EXPECT_THAT(held_ranges(layout, 6, 0),
              ElementsAre(HeldRange{{0, 2, 3}, 0, 3, 0}, HeldRange{{1, 2, 3}, 3, 6, 0}));
  const ShardLayout whole(Layout::kFlat, Shapes{{6}}, 1, DType::kF32);
  EXPECT_THAT(held_ranges(whole, 6, 0), ElementsAre(HeldRange{{0, 1, 6}, 0, 6, 0}));
}

TEST(HeldRangesTest, PerParameterRangesAreRowsAndThenPadding) {
  // Two rows of 3 on four ranks: ranks 2 and 3 hold padding only.
  const ShardLayout layout(Layout::kPerParameter, Shapes{{2, 3}, {4}}, 4, DType::kF32);
  EXPECT_THAT(held_ranges(layout, 4, 0),
              ElementsAre(HeldRange{{0, 4, 1}, 0, 3, 0}, HeldRange{{1, 4, 1}, 3, 6, 0}));
  EXPECT_EQ(held_ranges(layout, 4, 1)[3], (HeldRange{{3, 4, 1}, 3, 4, 3}));
  EXPECT_THAT(padding_ranges(layout, 4),
              ElementsAre(HeldRange{{2, 4, 1}, 0, 3, 0}, HeldRange{{3, 4, 1}, 0, 3, 0}));
}

TEST(HeldRangesTest, ParametersWithoutElementsAreNowhere) {
  for (const Layout layout : {Layout::kFlat, Layout::kPerParameter}) {
    EXPECT_THAT(held_ranges(ShardLayout(layout, Shapes{{0, 4}, {4}}, 2, DType::kF32), 2, 0),
                IsEmpty());
  }
}

// In any layout, every element of a parameter is held once within a replica, and ranges and padding
// fill each shard without overlap.
TEST(HeldRangesTest, RangesTileParametersAndShards) {
  std::mt19937 random(7);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same cases every time
  for (int i = 0; i < 200; ++i) {
    Shapes shapes(1 + random() % 4);
    for (auto& shape : shapes) {
      shape = {static_cast<int64_t>(random() % 9), static_cast<int64_t>(1 + random() % 5)};
    }
    const auto ranks = static_cast<int64_t>(1 + random() % 6);
    const auto replicas = static_cast<int64_t>(1 + random() % 3);
    const ShardLayout layout(i % 2 == 0 ? Layout::kFlat : Layout::kPerParameter, shapes, ranks,
                             i % 3 == 0 ? DType::kBF16 : DType::kF32);
    std::map<int64_t, std::vector<int>> shards;  // by rank, how often each element is covered
    const auto cover = [&](const HeldRange& range) {
      for (int64_t k = 0; k < range.ranks.count; ++k) {
        auto& shard = shards[range.ranks.first + k * range.ranks.stride];
        shard.resize(static_cast<size_t>(layout.shard_numel()));
        for (int64_t at = 0; at < range.end - range.begin; ++at) {
          ++shard.at(static_cast<size_t>(range.shard_begin + at));
        }
      }
    };
    for (size_t p = 0; p < shapes.size(); ++p) {
      int64_t at = 0;
      for (const HeldRange& range : held_ranges(layout, ranks * replicas, p)) {
        EXPECT_EQ(range.begin, at);
        EXPECT_EQ(range.ranks.count, replicas);
        at = range.end;
        cover(range);
      }
      EXPECT_EQ(at, shapes[p][0] * shapes[p][1]);
    }
    for (const HeldRange& range : padding_ranges(layout, ranks * replicas)) {
      cover(range);
    }
    for (const auto& [rank, shard] : shards) {
      EXPECT_TRUE(std::ranges::all_of(shard, [](int times) { return times == 1; }))
          << "case " << i << ", rank " << rank;
    }
    EXPECT_EQ(shards.size(), layout.shard_numel() == 0 ? 0 : static_cast<size_t>(ranks * replicas));
  }
}

TEST(HeldRangesTest, EveryParameterHasOnePlace) {
  const ModuleTree tree =
      module_tree(load_model_config(std::string(SHARDLENS_TEST_DATA) + "/gpt2-tiny"));
  const ResolvedPlan plan = resolve(
      parse_plan(R"({"version": 1, "units": [{"modules": "transformer.h.*"}, {"modules": ""}],
                     "ignored_parameters": ["transformer.wpe.weight"]})",
                 "plan.json"),
      tree, 2);
  std::set<uint32_t> seen;
  for (const ParameterPlace& place : parameter_places(plan)) {
    EXPECT_TRUE(seen.insert(place.parameter).second);
    if (place.unit == kNoUnit) {
      EXPECT_EQ(tree.parameters[place.parameter].fqn, "transformer.wpe.weight");
    } else {
      EXPECT_EQ(plan.units[place.unit].parameters[place.index], place.parameter);
    }
  }
  EXPECT_EQ(seen.size(), tree.parameters.size());
}

}  // namespace
}  // namespace shardlens::plan
