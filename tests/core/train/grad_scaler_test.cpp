#include "core/train/grad_scaler.h"

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "core/train/optimizer.h"
#include "tests/support/ranks.h"

namespace shardlens::train {
namespace {

using nlohmann::json;

double number(const json& value) {
  if (value.is_number()) {
    return value;
  }
  const double infinity = std::numeric_limits<double>::infinity();
  return value == "nan" ? std::nan("") : value == "-inf" ? -infinity : infinity;
}

OptimizerOptions plain_sgd() {
  OptimizerOptions options;
  options.kind = plan::Optimizer::kSgd;
  options.lr = 1;
  options.momentum = options.weight_decay = 0;
  return options;
}

// Reference: tests/tools/grad_scaler_reference.py.
TEST(GradScalerTest, ScalesSkipsAndGrowsAsPyTorchsOnTwoRanks) {
  json recorded;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/grad_scaler.json") >> recorded;
  ASSERT_EQ(recorded["steps"].size(), 13U);
  test::run_ranks(2, [&](dist::World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    const at::Tensor shard = at::zeros({2}).requires_grad_();
    GradScaler scaler(&world,
                      {.scale = recorded["initial"], .growth_interval = recorded["interval"]});
    const std::vector<at::Tensor> shards{shard};
    const auto optimizer = make_optimizer(shards, plain_sgd());
    for (const json& step : recorded["steps"]) {
      EXPECT_EQ(scaler.scale(), step["scale"]);
      const at::Tensor derivative =
          at::tensor({1.0F, static_cast<float>(number(step["derivative"][rank]))});
      shard.mutable_grad() = scaler.scale(derivative);
      scaler.unscale(shards);
      EXPECT_EQ(scaler.state()[1].item<float>() == 0, step["stepped"].get<bool>());
      scaler.step(*optimizer);
      scaler.update();
      EXPECT_EQ(scaler.scale(), step["next_scale"]);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(shard.detach()[static_cast<int64_t>(i)].item<float>(),
                  step["parameter"][rank][i].get<float>());
      }
    }
  });
}

// A rank without any part of the parameters still takes part.
TEST(GradScalerTest, RanksWithoutGradientsSkipToo) {
  test::run_ranks(2, [](dist::World& world) {
    GradScaler scaler(&world);
    EXPECT_EQ(scaler.scale(), 65536);
    const at::Tensor shard = at::zeros({1}).requires_grad_();
    std::vector<at::Tensor> shards;
    if (world.rank() == 0) {
      shard.mutable_grad() = at::tensor({std::numeric_limits<float>::infinity()});
      shards.push_back(shard);
    }
    const auto optimizer = make_optimizer(shards, plain_sgd());
    scaler.unscale(shards);
    EXPECT_EQ(scaler.state()[1].item<float>(), 1);
    scaler.step(*optimizer);
    scaler.update();
    EXPECT_EQ(scaler.scale(), 32768);
  });
}

TEST(GradScalerTest, OneRankAloneNeedsNoWorld) {
  GradScaler scaler(nullptr, {.scale = 4});
  const at::Tensor shard = at::zeros({1}).requires_grad_();
  (scaler.scale(shard.sum() * 3)).backward();
  EXPECT_EQ(shard.grad().item<float>(), 12);
  scaler.unscale(std::vector<at::Tensor>{shard});
  EXPECT_EQ(shard.grad().item<float>(), 3);
}

}  // namespace
}  // namespace shardlens::train
