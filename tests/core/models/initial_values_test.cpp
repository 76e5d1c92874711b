#include "core/models/initial_values.h"

#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace shardlens::models {
namespace {

std::vector<float> draw(const plan::Parameter& parameter,
                        uint32_t index,
                        uint64_t seed,
                        int64_t offset,
                        size_t count,
                        const plan::ModelConfig& config = {}) {
  std::vector<float> out(count);
  initial_values(config, parameter, index, seed, offset, out);
  return out;
}

TEST(InitialValuesTest, ASliceIsThatPartOfTheWhole) {
  const plan::Parameter weight{"model.layers.0.mlp.up_proj.weight", {37, 11}, 407, 0, {}};
  const auto whole = draw(weight, 5, 1, 0, 407);
  for (int64_t offset = 0; offset < 407; offset += 13) {
    const auto part =
        draw(weight, 5, 1, offset, static_cast<size_t>(std::min<int64_t>(29, 407 - offset)));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + offset)) << offset;
  }
  EXPECT_NE(whole, draw(weight, 6, 1, 0, 407));
  EXPECT_NE(whole, draw(weight, 5, 2, 0, 407));
}

TEST(InitialValuesTest, WeightsAreNormalWithTheConfigsDeviation) {
  const plan::Parameter weight{"transformer.h.0.attn.c_proj.weight", {300, 1000}, 300000, 0, {}};
  plan::ModelConfig config;
  config.family = "gpt2";
  config.layers = 8;  // 0.02 / sqrt(16) = 0.005
  const auto values = draw(weight, 0, 42, 0, 300000, config);
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / 300000;
  double second = 0;
  int beyond = 0;
  for (const float value : values) {
    second += value * value;
    beyond += std::abs(value) > 2 * 0.005 ? 1 : 0;
  }
  EXPECT_NEAR(mean, 0.0, 5 * 0.005 / std::sqrt(300000.0));
  EXPECT_NEAR(std::sqrt(second / 300000), 0.005, 0.005 * 0.01);
  EXPECT_NEAR(beyond / 300000.0, 0.0455, 0.002);  // P(|z| > 2)
}

TEST(InitialValuesTest, NormsAreOneAndBiasesZero) {
  EXPECT_EQ(draw({"model.norm.weight", {2}, 2, 0, {}}, 0, 0, 0, 2), (std::vector<float>{1, 1}));
  EXPECT_EQ(draw({"transformer.ln_f.bias", {2}, 2, 0, {}}, 0, 0, 0, 2), (std::vector<float>{0, 0}));
}

// The padding token's row is 0, whatever part of the embedding a rank has; norms that add 1 to
// their weights start at 0.
TEST(InitialValuesTest, PaddingAndOffsetNormsAreZero) {
  const plan::Parameter embedding{"model.embed_tokens.weight", {6, 4}, 24, 0, {}};
  plan::ModelConfig config;
  config.family = "gemma2";
  config.padding_index = 2;  // elements 8 to 11
  const auto whole = draw(embedding, 0, 1, 0, 24, config);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i] == 0.0F, i >= 8 && i < 12) << i;
  }
  for (int64_t offset = 0; offset < 24; ++offset) {
    const auto part = draw(embedding, 0, 1, offset, static_cast<size_t>(24 - offset), config);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + offset)) << offset;
  }
  EXPECT_EQ(draw(embedding, 0, 1, 0, 9, config)[8], 0.0F);
  const plan::Parameter norm{"model.norm.weight", {4}, 4, 0, {}};
  EXPECT_EQ(draw(norm, 1, 1, 0, 4, config), std::vector<float>(4, 0.0F));
  config.family = "qwen3";
  EXPECT_EQ(draw(norm, 1, 1, 0, 4, config), std::vector<float>(4, 1.0F));
}

}  // namespace
}  // namespace shardlens::models
