#include "core/train/optimizer.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

namespace shardlens::train {
namespace {

at::Tensor shard(double value, double grad) {
  at::Tensor tensor = at::full({5}, value, at::kFloat);
  tensor.set_requires_grad(true);
  tensor.mutable_grad() = at::full({5}, grad, at::kFloat);
  return tensor;
}

void expect_all(const at::Tensor& tensor, double value) {
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    EXPECT_NEAR(tensor.data_ptr<float>()[i], value, 1e-6 * std::abs(value) + 1e-7);
  }
}

// Two parameters with different gradients in every step, compared with the algorithms that
// torch.optim documents.
TEST(OptimizerTest, AdamWFollowsItsDefinition) {
  std::vector<at::Tensor> shards{shard(1.0, 0), shard(-2.0, 0)};
  const auto optimizer = make_optimizer(shards, {.lr = 0.1, .weight_decay = 0.05});
  double p[2] = {1.0, -2.0}, m[2] = {}, v[2] = {};
  for (int t = 1; t <= 4; ++t) {
    for (int i = 0; i < 2; ++i) {
      const double g = 0.3 * t * (i == 0 ? 1 : -1) + 0.1;
      shards[i].mutable_grad().fill_(g);
      p[i] *= 1 - 0.1 * 0.05;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      p[i] -= 0.1 * (m[i] / (1 - std::pow(0.9, t))) /
              (std::sqrt(v[i] / (1 - std::pow(0.999, t))) + 1e-8);
    }
    optimizer->step();
    expect_all(shards[0], p[0]);
    expect_all(shards[1], p[1]);
  }
}

TEST(OptimizerTest, SgdWithMomentumAndWeightDecayFollowsItsDefinition) {
  std::vector<at::Tensor> shards{shard(1.0, 0), shard(-2.0, 0)};
  const auto optimizer = make_optimizer(
      shards, {.kind = plan::Optimizer::kSgd, .lr = 0.1, .weight_decay = 0.05, .momentum = 0.9});
  double p[2] = {1.0, -2.0}, b[2] = {};
  for (int t = 1; t <= 4; ++t) {
    for (int i = 0; i < 2; ++i) {
      const double grad = 0.3 * t * (i == 0 ? 1 : -1);
      shards[i].mutable_grad().fill_(grad);
      const double g = grad + 0.05 * p[i];
      b[i] = t == 1 ? g : 0.9 * b[i] + g;
      p[i] -= 0.1 * b[i];
    }
    optimizer->step();
    expect_all(shards[0], p[0]);
    expect_all(shards[1], p[1]);
  }
}

TEST(OptimizerTest, AShardWithoutGradientStaysAndStartsLater) {
  for (const auto kind : {plan::Optimizer::kAdamW, plan::Optimizer::kSgd}) {
    std::vector<at::Tensor> shards{shard(1.0, 1.0), shard(1.0, 1.0)};
    shards[1].mutable_grad() = at::Tensor();
    const auto optimizer = make_optimizer(shards, {.kind = kind, .lr = 0.1, .weight_decay = 0});
    optimizer->step();
    expect_all(shards[0], 0.9);
    expect_all(shards[1], 1.0);
    shards[0].mutable_grad() = at::Tensor();
    shards[1].mutable_grad() = at::full({5}, 1.0, at::kFloat);
    optimizer->step();
    expect_all(shards[0], 0.9);
    expect_all(shards[1], 0.9);  // its own first step
  }
}

// As if the step had not been made, also for the number of steps that AdamW counts.
TEST(OptimizerTest, AStepWithAnInfinityChangesNothing) {
  for (const auto kind : {plan::Optimizer::kAdamW, plan::Optimizer::kSgd}) {
    std::vector<at::Tensor> shards{shard(1.0, 0.5)}, expected{shard(1.0, 0.5)};
    const OptimizerOptions options{.kind = kind, .lr = 0.1};
    const auto optimizer = make_optimizer(shards, options);
    const auto reference = make_optimizer(expected, options);
    for (const float found : {1.0F, 0.0F, 1.0F, 0.0F}) {
      shards[0].mutable_grad().fill_(found == 0 ? 0.5 : std::nan(""));
      optimizer->step(at::full({1}, found));
      if (found == 0) {
        reference->step();
      }
      EXPECT_TRUE(at::equal(shards[0], expected[0]));
    }
  }
}

TEST(OptimizerTest, SgdWithoutMomentumIsPlainDescent) {
  std::vector<at::Tensor> shards{shard(1.0, 0.5)};
  const auto optimizer = make_optimizer(
      shards, {.kind = plan::Optimizer::kSgd, .lr = 0.1, .weight_decay = 0, .momentum = 0});
  optimizer->step();
  optimizer->step();
  expect_all(shards[0], 0.9);
}

}  // namespace
}  // namespace shardlens::train
