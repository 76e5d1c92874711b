#include "core/layout/shard_layout.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace shardlens::plan {
namespace {

using nlohmann::json;
using Shapes = std::vector<std::vector<int64_t>>;

// The block and the root of orders.json: Linear(5,7) ReLU Linear(7,5), and two Linear(5,5).
const Shapes kBlock{{7, 5}, {7}, {5, 7}, {5}};
const Shapes kRoot{{5, 5}, {5}, {5, 5}, {5}};

TEST(ShardLayoutTest, FlatAlignsEachParameterAndPadsTheEnd) {
  const ShardLayout layout(Layout::kFlat, kBlock, 3, DType::kF32);
  // 35 → 36, +7 = 43 → 44, +35 = 79 → 80, +5 = 85 → 87 for three ranks.
  EXPECT_EQ(layout.numel(), 82);
  EXPECT_EQ(layout.padded_numel(), 87);
  EXPECT_EQ(layout.shard_numel(), 29);
  EXPECT_EQ(layout.padding_numel(), 5);
  std::vector<int64_t> offsets;
  for (const auto& piece : layout.pieces()) {
    if (piece.parameter != ShardLayout::kPadding) {
      offsets.push_back(piece.offset);
    }
  }
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 36, 44, 80}));
  // Rank 1 holds [29, 58): the last 6 of p0, p1, and the first 14 of p2.
  EXPECT_EQ(layout.slice(1, 0).numel, 6);
  EXPECT_EQ(layout.slice(1, 0).param_offset, 29);
  EXPECT_EQ(layout.slice(1, 0).shard_offset, 0);
  EXPECT_EQ(layout.slice(1, 1).numel, 7);
  EXPECT_EQ(layout.slice(1, 1).shard_offset, 7);
  EXPECT_EQ(layout.slice(1, 2).numel, 14);
  EXPECT_EQ(layout.slice(1, 2).shard_offset, 15);
  EXPECT_EQ(layout.slice(1, 3).numel, 0);
  EXPECT_EQ(layout.owned_numel(1), 27);
}

TEST(ShardLayoutTest, PerParameterCutsRowsAsChunkDoes) {
  const ShardLayout layout(Layout::kPerParameter, kBlock, 3, DType::kF32);
  // Chunks of 3 rows of 5, 3 rows of 1, 2 rows of 7, 2 rows of 1.
  EXPECT_EQ(layout.shard_numel(), 15 + 3 + 14 + 2);
  EXPECT_EQ(layout.slice(2, 0).numel, 5);
  EXPECT_EQ(layout.slice(2, 0).param_offset, 30);
  EXPECT_EQ(layout.slice(2, 0).padding, 10);
  EXPECT_EQ(layout.slice(2, 3).numel, 1);
  EXPECT_EQ(layout.slice(2, 3).padding, 1);
  EXPECT_EQ(layout.slice(1, 2).shard_offset, 18);
}

TEST(ShardLayoutTest, RanksBeyondTheRowsHoldNothing) {
  const ShardLayout layout(Layout::kPerParameter, Shapes{{2, 3}}, 8, DType::kF32);
  EXPECT_EQ(layout.shard_numel(), 3);
  EXPECT_EQ(layout.owned_numel(1), 3);
  for (int64_t rank = 2; rank < 8; ++rank) {
    EXPECT_EQ(layout.owned_numel(rank), 0);
    EXPECT_EQ(layout.slice(rank, 0).padding, 3);
  }
}

TEST(ShardLayoutTest, EmptyUnitsHoldNothing) {
  for (const Layout kind : {Layout::kFlat, Layout::kPerParameter}) {
    const ShardLayout layout(kind, Shapes{}, 4, DType::kBF16);
    EXPECT_EQ(layout.shard_numel(), 0);
    EXPECT_EQ(layout.padding_numel(), 0);
    EXPECT_EQ(layout.owned_numel(3), 0);
  }
}

// Bytes of every all-gather that PyTorch issued for these units, over all recorded configurations.
TEST(ShardLayoutTest, GivesTheBytesThatPyTorchGathers) {
  json orders;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/orders.json") >> orders;
  size_t compared = 0;
  std::map<std::string, int> groups;
  for (const json& test : orders["cases"]) {
    if (test.contains("special") || test.contains("orig") || test["api"] == "replicate" ||
        !test.contains("sizes")) {
      continue;
    }
    const bool fsdp1 = test["api"] == "fsdp1";
    const int64_t world = test.value("W", 2);
    const int64_t shard = test.contains("mesh") ? test["mesh"].back().get<int64_t>() : world;
    const bool no_shard = test.value("strategy", "") == "NO_SHARD";
    const Layout kind = fsdp1 ? Layout::kFlat : Layout::kPerParameter;
    const bool bf16 = test.value("mp", 0) == 1;
    for (const json& size : test["sizes"]) {
      // A smaller group gathers what its sub-mesh kept: each rank has the shards of several ranks.
      if (size[0] != "A" || size[2] != shard || no_shard) {
        continue;
      }
      const std::string unit = size[1];
      const ShardLayout layout(kind, unit == "r" ? kRoot : kBlock, shard,
                               bf16 ? DType::kBF16 : DType::kF32);
      const int64_t element = bf16 ? 2 : 4;
      EXPECT_EQ(layout.shard_numel() * element, size[3]) << test["id"] << " " << unit;
      EXPECT_EQ(layout.padded_numel() * element, size[4]) << test["id"] << " " << unit;
      ++compared;
      ++groups[size[5].get<std::string>() + std::to_string(shard)];
    }
  }
  EXPECT_GT(compared, 1000U);
  EXPECT_GE(groups.size(), 4U);
}

struct Random {
  std::mt19937 engine{20240229};
  int64_t operator()(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine);
  }
};

// Slices tile every parameter exactly once, stay inside the shard, and do not overlap there.
TEST(ShardLayoutTest, SlicesTileEachParameterOnce) {
  Random random;
  for (int trial = 0; trial < 400; ++trial) {
    Shapes shapes;
    for (int64_t i = random(0, 6); i > 0; --i) {
      std::vector<int64_t> shape;
      for (int64_t d = random(1, 3); d > 0; --d) {
        shape.push_back(random(1, 9));
      }
      shapes.push_back(shape);
    }
    const auto kind = random(0, 1) == 0 ? Layout::kFlat : Layout::kPerParameter;
    const auto dtype = random(0, 1) == 0 ? DType::kF32 : DType::kBF16;
    const ShardLayout layout(kind, shapes, random(1, 17), dtype);
    EXPECT_EQ(layout.padded_numel(), layout.shard_numel() * layout.ranks());
    int64_t owned = 0;
    std::vector<std::vector<int>> seen(shapes.size());
    std::vector<int64_t> next(shapes.size(), 0);
    for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
      std::vector<int> shard(static_cast<size_t>(layout.shard_numel()), 0);
      for (size_t p = 0; p < shapes.size(); ++p) {
        const auto slice = layout.slice(rank, p);
        if (slice.numel > 0) {
          EXPECT_EQ(slice.param_offset, next[p])
              << "ranks hold a parameter in order and without gaps";
          next[p] += slice.numel;
        }
        ASSERT_GE(slice.shard_offset, 0);
        ASSERT_LE(slice.shard_offset + slice.numel + slice.padding, layout.shard_numel());
        for (int64_t i = 0; i < slice.numel + slice.padding; ++i) {
          EXPECT_EQ(shard[static_cast<size_t>(slice.shard_offset + i)]++, 0);
        }
      }
      owned += layout.owned_numel(rank);
    }
    EXPECT_EQ(owned, layout.numel());
    for (size_t p = 0; p < shapes.size(); ++p) {
      int64_t numel = 1;
      for (const int64_t size : shapes[p]) {
        numel *= size;
      }
      EXPECT_EQ(next[p], numel);
    }
    int64_t at = 0;
    for (const auto& piece : layout.pieces()) {
      EXPECT_EQ(piece.offset, at);
      at += piece.numel;
      if (piece.parameter != ShardLayout::kPadding) {
        EXPECT_EQ(piece.offset * size_of(dtype) % 16, 0);
      }
    }
    EXPECT_EQ(at, kind == Layout::kFlat ? layout.padded_numel() : 0);
  }
}

}  // namespace
}  // namespace shardlens::plan
