// Norms and clipping over uneven shards, compared with torch::nn::utils::clip_grad_norm_ on one
// process.
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <torch/nn/utils/clip_grad.h>

#include "core/base/error.h"
#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/chain.h"
#include "tests/core/fsdp/mlp.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Mlp;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Mlp make_norm_model() {
  Mlp model(5, 3);
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (at::Tensor& p : model->parameters()) {
    p.copy_(test::seeded(p.sizes(), seed++).mul(0.3));
  }
  return model;
}

at::Tensor loss_of(Mlp& model, int rank) {
  return model(test::seeded({4, 5}, 100 + static_cast<uint64_t>(rank))).pow(2).mean();
}

struct GradNormCase {
  int ranks;
  double norm_type, max_norm;
  std::string more = {};
};

TEST(GradNormTest, NormsAndClippedGradientsAreThoseOfOneProcess) {
  std::vector<GradNormCase> cases;
  for (const int ranks : {1, 2, 3}) {
    for (const double type : {1.0, 2.0, 3.0, kInfinity}) {
      cases.push_back({ranks, type, 0.05});
      cases.push_back({ranks, type, 1e6});  // nothing to clip
    }
  }
  // One rank of three has no elements of the last layer.
  for (const double type : {1.0, 2.0, kInfinity}) {
    cases.push_back({3, type, 0.05, R"(, "layout": "per_parameter")"});
  }
  cases.push_back({2, 1.0, 0.05, R"(, "mesh": {"shard": 1, "replicate": 2})"});
  cases.push_back({2, kInfinity, 0.05, R"(, "mesh": {"shard": 1, "replicate": 2})"});
  for (const GradNormCase& c : cases) {
    Mlp plain = make_norm_model();
    for (int rank = 0; rank < c.ranks; ++rank) {
      (loss_of(plain, rank) / c.ranks).backward();
    }
    const double expected =
        torch::nn::utils::clip_grad_norm_(plain->parameters(), c.max_norm, c.norm_type);
    test::run_ranks(c.ranks, [&](dist::World& world) {
      SCOPED_TRACE("ranks " + std::to_string(c.ranks) + ", norm " + std::to_string(c.norm_type) +
                   c.more);
      Mlp model = make_norm_model();
      const auto sharded =
          fully_shard(model.ptr(), test::mlp_plan("null", c.more), {.world = &world});
      loss_of(model, world.rank()).backward();
      EXPECT_NEAR(sharded->clip_grad_norm(c.max_norm, c.norm_type), expected, 1e-5 * expected);
      for (const ParameterSlice& slice : sharded->slices()) {
        const at::Tensor grad = model->parameters()[slice.parameter].grad();
        const at::Tensor whole = plain->parameters()[slice.parameter].grad().reshape({-1}).narrow(
            0, slice.offset, slice.values.numel());
        EXPECT_TRUE(at::allclose(grad, whole, 1e-5, 1e-7)) << "parameter " << slice.parameter;
      }
    });
  }
}

TEST(GradNormTest, NormTypesThatAreNoneAreNamed) {
  test::run_ranks(1, [](dist::World& world) {
    Mlp model = make_norm_model();
    const auto sharded = fully_shard(model.ptr(), test::mlp_plan(), {.world = &world});
    loss_of(model, 0).backward();
    for (const double type : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
      EXPECT_THROW(static_cast<void>(sharded->clip_grad_norm(1.0, type)), UsageError);
    }
  });
}

}  // namespace
}  // namespace shardlens::fsdp
