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

}  // namespace
}  // namespace shardlens::models
