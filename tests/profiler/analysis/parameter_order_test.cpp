// Which parameters collectives of a program move, worked by hand from their sizes and order.
#include "profiler/analysis/timeline/parameter_order.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/trace/sharded_parameters.h"

namespace shardlens::analysis {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using trace::ShardedParameter;

constexpr int64_t kEmbedding = 1000, kNorm = 8, kSquare = 64, kWide = 192;

void add(const std::string& name, int64_t elements, std::vector<ShardedParameter>& out) {
  out.push_back({name, trace::block_of_parameter(name), elements, 2, 1, true});
}

// norm, q, k, up, down in each block; an embedding before, a norm and a head after them.
std::vector<ShardedParameter> model(int blocks, bool early_norm = false) {
  std::vector<ShardedParameter> out;
  add("embed.weight", kEmbedding, out);
  if (early_norm) {
    add("norm.weight", kNorm, out);
  }
  for (int i = 0; i < blocks; ++i) {
    const std::string block = "layers." + std::to_string(i);
    add(block + ".norm.weight", kNorm, out);
    add(block + ".attention.q.weight", kSquare, out);
    add(block + ".attention.k.weight", kSquare, out);
    add(block + ".mlp.up.weight", kWide, out);
    add(block + ".mlp.down.weight", kWide, out);
  }
  if (!early_norm) {
    add("norm.weight", kNorm, out);
  }
  add("head.weight", kEmbedding, out);
  return out;
}

std::vector<std::string> units(const std::vector<MovedParameters>& moved) {
  std::vector<std::string> out;
  for (const MovedParameters& each : moved) {
    out.push_back(each.ambiguous ? "?" : each.unit);
  }
  return out;
}

TEST(ParameterOrderTest, BlocksAreTheOutermostNumberedModules) {
  EXPECT_EQ(trace::block_of_parameter("model.layers.3.experts.7.w1"), "model.layers.3");
  EXPECT_EQ(trace::block_of_parameter("0.weight"), "0");
  EXPECT_EQ(trace::block_of_parameter("norm2.weight"), "");
  EXPECT_EQ(trace::block_of_parameter("head"), "");
}

TEST(ParameterOrderTest, OrderWithinABlockDoesNotMatter) {
  const std::vector<int64_t> forward{kEmbedding, kSquare, kNorm, kSquare, kWide, kWide,     kSquare,
                                     kSquare,    kNorm,   kWide, kWide,   kNorm, kEmbedding};
  const auto moved = moved_parameters(forward, model(2), false);
  EXPECT_THAT(units(moved),
              ElementsAre("", "layers.0", "layers.0", "layers.0", "layers.0", "layers.0",
                          "layers.1", "layers.1", "layers.1", "layers.1", "layers.1", "", ""));
  // The module is the innermost that every parameter of this size is in.
  EXPECT_EQ(moved[0].module, "embed");
  EXPECT_EQ(moved[1].module, "layers.0.attention");
  EXPECT_EQ(moved[2].module, "layers.0.norm");
  EXPECT_EQ(moved[4].module, "layers.0.mlp");
  EXPECT_EQ(moved[11].module, "norm");
}

// Of two parameters of a size the one that comes first in the order of the calls' direction.
TEST(ParameterOrderTest, WhichParametersEachMoves) {
  const std::vector<int64_t> forward{kEmbedding, kSquare,       kNorm,
                                     kSquare,    kWide + kWide, kNorm + kEmbedding};
  const auto moved = moved_parameters(forward, model(1), false);
  ASSERT_EQ(moved.size(), 6U);
  EXPECT_THAT(moved[0].parameters, ElementsAre(0));
  EXPECT_THAT(moved[1].parameters, ElementsAre(2));  // layers.0.attention.q
  EXPECT_THAT(moved[2].parameters, ElementsAre(1));  // layers.0.norm
  EXPECT_THAT(moved[3].parameters, ElementsAre(3));  // layers.0.attention.k
  EXPECT_THAT(moved[4].parameters, ElementsAre(4, 5));
  EXPECT_THAT(moved[5].parameters, ElementsAre(6, 7));
  const auto back = moved_parameters(
      std::vector<int64_t>{kNorm + kEmbedding, kWide, kWide, kSquare}, model(1), true);
  ASSERT_EQ(back.size(), 4U);
  EXPECT_THAT(back[1].parameters, ElementsAre(5));  // layers.0.mlp.down
  EXPECT_THAT(back[2].parameters, ElementsAre(4));
  EXPECT_THAT(back[3].parameters, ElementsAre(3));
  // Buckets of a size cut units, so that their ends are not known.
  const int64_t block = kNorm + 2 * kSquare + 2 * kWide;
  const auto cut =
      moved_parameters(std::vector<int64_t>{kEmbedding + block - kWide, kWide + kNorm + kEmbedding},
                       model(1), false);
  ASSERT_EQ(cut.size(), 2U);
  EXPECT_THAT(cut[0].parameters, IsEmpty());
}

// Backward needs neither the embedding nor, here, the first of two equal parameters.
TEST(ParameterOrderTest, BackwardGathersSomeOfTheParametersAgain) {
  const std::vector<int64_t> backward{kEmbedding, kNorm, kWide,   kSquare,
                                      kNorm,      kWide, kSquare, kNorm};
  EXPECT_THAT(
      units(moved_parameters(backward, model(2), true)),
      ElementsAre("", "", "layers.1", "layers.1", "layers.1", "layers.0", "layers.0", "layers.0"));
}

TEST(ParameterOrderTest, WhichBlockWasKeptIsAmbiguous) {
  const std::vector<int64_t> backward{kEmbedding, kNorm, kWide, kSquare, kWide, kSquare};
  EXPECT_THAT(units(moved_parameters(backward, model(3), true)),
              ElementsAre("", "?", "?", "?", "?", "?"));
}

// Both blocks move as much, not one of them all and the other nothing.
TEST(ParameterOrderTest, BlocksAlikeMoveAsMuch) {
  const std::vector<int64_t> backward{kEmbedding, kWide, kSquare, kWide, kSquare};
  EXPECT_THAT(units(moved_parameters(backward, model(2), true)),
              ElementsAre("", "layers.1", "layers.1", "layers.0", "layers.0"));
}

TEST(ParameterOrderTest, BucketsOfAUnitAndOfSeveral) {
  const int64_t block = kNorm + 2 * kSquare + 2 * kWide;
  const std::vector<int64_t> forward{kEmbedding, block,     kNorm + 2 * kSquare,
                                     2 * kWide,  2 * block, kNorm + kEmbedding};
  const auto moved = moved_parameters(forward, model(4), false);
  EXPECT_THAT(units(moved),
              ElementsAre("", "layers.0", "layers.1", "layers.1", "layers.2 … layers.3", ""));
  EXPECT_EQ(moved[3].module, "layers.1");
  EXPECT_THAT(units(moved_parameters(std::vector<int64_t>{kEmbedding, kNorm + block, block},
                                     model(2), true)),
              ElementsAre("", "layers.1 … norm.weight", "layers.0"));
}

// A bucket has a largest size, whatever unit it ends in.
TEST(ParameterOrderTest, BucketsThatCutUnits) {
  const int64_t block = kNorm + 2 * kSquare + 2 * kWide;
  const std::vector<int64_t> forward{kEmbedding + block - kWide, kWide + block - kWide,
                                     kWide + kNorm + kEmbedding};
  EXPECT_THAT(
      units(moved_parameters(forward, model(2), false)),
      ElementsAre("embed.weight … layers.0", "layers.0 … layers.1", "layers.1 … head.weight"));
}

// A norm that is registered before the blocks runs there or after them, and the sizes are the same.
TEST(ParameterOrderTest, WhatDependsOnAnEarlyNormIsAmbiguous) {
  const std::vector<int64_t> forward{kEmbedding, kNorm,   kSquare, kSquare, kWide, kWide,     kNorm,
                                     kSquare,    kSquare, kWide,   kWide,   kNorm, kEmbedding};
  EXPECT_THAT(units(moved_parameters(forward, model(2, true), false)),
              ElementsAre("", "?", "layers.0", "layers.0", "layers.0", "layers.0", "?", "layers.1",
                          "layers.1", "layers.1", "layers.1", "?", ""));
}

TEST(ParameterOrderTest, OtherSizesFitNowhere) {
  EXPECT_THAT(moved_parameters(std::vector<int64_t>{kEmbedding, 7}, model(2), false), IsEmpty());
  EXPECT_THAT(moved_parameters(std::vector<int64_t>(200, kNorm), model(2), false), IsEmpty());
}

// 120 blocks, each gathered and then gathered again in part.
TEST(ParameterOrderTest, ManyBlocks) {
  std::vector<int64_t> forward{kEmbedding}, backward{kEmbedding, kNorm};
  for (int i = 0; i < 120; ++i) {
    forward.insert(forward.end(), {kNorm, kSquare, kSquare, kWide, kWide});
    backward.insert(backward.end(), {kWide, kWide, kSquare, kSquare});
  }
  forward.insert(forward.end(), {kNorm, kEmbedding});
  const auto first = moved_parameters(forward, model(120), false);
  ASSERT_EQ(first.size(), forward.size());
  EXPECT_EQ(first[1 + 5 * 77].unit, "layers.77");
  EXPECT_THAT(first, Each(Field(&MovedParameters::ambiguous, false)));
  const auto second = moved_parameters(backward, model(120), true);
  ASSERT_EQ(second.size(), backward.size());
  EXPECT_EQ(second[2 + 4 * 19].unit, "layers.100");
  EXPECT_THAT(second, Each(Field(&MovedParameters::ambiguous, false)));
}

}  // namespace
}  // namespace shardlens::analysis
