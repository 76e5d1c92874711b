// Ranks with uneven numbers of batches. The expected parameters are those of an unsharded model
// that gets, in each step, the batches of the ranks that have one.
#include "core/fsdp/apply/uneven_inputs.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
#include <torch/optim/sgd.h>

#include "core/dist/world.h"
#include "core/plan/resolve.h"
#include "tests/core/fsdp/mlp.h"
#include "tests/core/fsdp/seeded.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

constexpr int64_t kWidth = 5, kBlocks = 3;

struct JoinCase {
  const char* name;
  std::string plan;               // keys of a plan
  std::vector<uint64_t> batches;  // of each rank
  bool by_initial = true;
  double divisor = 0;  // 0: the ranks
  std::string reshard = "null";
};

void PrintTo(const JoinCase& c, std::ostream* out) {
  *out << c.name;
}

at::Tensor loss_of(test::Mlp& model, uint64_t step, size_t rank) {
  return model(test::seeded({4, kWidth}, 100 * step + rank)).pow(2).mean();
}

// The parameters of an unsharded model after all steps.
std::vector<at::Tensor> expected_of(const JoinCase& c, double momentum = 0.9) {
  test::Mlp model = test::make_mlp(kWidth, kBlocks);
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(momentum));
  for (uint64_t step = 0;; ++step) {
    size_t with_data = 0;
    for (size_t rank = 0; rank < c.batches.size(); ++rank) {
      with_data += step < c.batches[rank] ? 1 : 0;
    }
    if (with_data == 0) {
      break;
    }
    const double ranks = static_cast<double>(c.batches.size());
    const double share = c.by_initial ? 1 : static_cast<double>(with_data) / ranks;
    const double divisor = (c.divisor == 0 ? ranks : c.divisor) * share;
    for (size_t rank = 0; rank < c.batches.size(); ++rank) {
      if (step < c.batches[rank]) {
        loss_of(model, step, rank).div(divisor).backward();
      }
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : model->parameters()) {
    values.push_back(parameter.detach());
  }
  return values;
}

class JoinTest : public testing::TestWithParam<JoinCase> {};

TEST_P(JoinTest, HasTheParametersOfTheBatchesThatThereAre) {
  const JoinCase& c = GetParam();
  const std::vector<at::Tensor> values = expected_of(c);
  const auto ranks = static_cast<int>(c.batches.size());
  test::run_ranks(
      ranks,
      [&](dist::World& world) {
        const auto rank = static_cast<size_t>(world.rank());
        test::Mlp model = test::make_mlp(kWidth, kBlocks);
        const auto sharded = fully_shard(model.ptr(), test::mlp_plan(c.reshard, c.plan),
                                         {.world = &world, .check_ledger = true});
        torch::optim::SGD optimizer(model->parameters(),
                                    torch::optim::SGDOptions(0.1).momentum(0.9));
        Join join(*sharded, world, {.divide_by_initial_world_size = c.by_initial});
        uint64_t step = 0;
        for (; join.next(step < c.batches[rank]) > 0; ++step) {
          if (join.has_batch()) {
            loss_of(model, step, rank).backward();
          } else {
            join.shadow();
          }
          EXPECT_GT(sharded->clip_grad_norm(1e6), 0);
          optimizer.step();
          sharded->optimizer_done();
          optimizer.zero_grad();
          EXPECT_EQ(sharded->plan().shards() == 1 ? 0 : sharded->unsharded_bytes(), 0);
        }
        EXPECT_EQ(step, *std::max_element(c.batches.begin(), c.batches.end()));
        for (uint32_t i = 0; i < values.size(); ++i) {
          const at::Tensor seen = sharded->full_parameter(i);
          EXPECT_TRUE(at::allclose(seen, values[i], 1e-4, 1e-6)) << "parameter " << i;
        }
      },
      [](dist::WorldOptions& options) { options.check_ranks = true; });
}

INSTANTIATE_TEST_SUITE_P(
    Plans,
    JoinTest,
    testing::Values(
        JoinCase{"defaults", "", {4, 2, 3}},
        JoinCase{"by_ranks_with_data", "", {4, 2, 3}, false},
        JoinCase{"one_rank_is_left", "", {1, 5}, false},
        JoinCase{"even", "", {3, 3}, false},
        JoinCase{"per_parameter", R"(, "layout": "per_parameter")", {2, 4, 3}, false},
        JoinCase{"fsdp1", R"(, "dialect": "fsdp1")", {2, 4}, false},
        JoinCase{"fsdp1_by_all", R"(, "dialect": "fsdp1")", {3, 1, 2}},
        JoinCase{"fsdp1_prefetch", R"(, "dialect": "fsdp1", "forward_prefetch": 1)", {2, 4, 3}},
        JoinCase{"hybrid", R"(, "mesh": {"replicate": 2, "shard": 2})", {3, 1, 2, 4}, false},
        JoinCase{"no_shard", R"(, "mesh": {"shard": 1})", {1, 3}},
        JoinCase{"kept", "", {1, 3}, false, 0, "false"},
        JoinCase{"over_2_ranks", "", {1, 3, 2, 2}, false, 0, "2"},
        JoinCase{"checkpoints", R"(, "activation_checkpointing": ["layers.*"])", {1, 3}},
        JoinCase{"prefetch", R"(, "forward_prefetch": 2, "views": "frozen")", {3, 1}},
        JoinCase{"offloaded", R"(, "cpu_offload": true)", {3, 1}, false},
        JoinCase{"divide_factor", R"(, "gradient_divide_factor": 3.0)", {3, 1}, false, 3},
        JoinCase{"divide_factor_by_all", R"(, "gradient_divide_factor": 3.0)", {3, 1}, true, 3},
        JoinCase{"divide_factor_and_frozen_views",
                 R"(, "gradient_divide_factor": 4.0, "views": "frozen")",
                 {1, 3},
                 false,
                 4}),
    [](const auto& each) { return std::string(each.param.name); });

// A rank without data updates its shards in backward, as the others do.
TEST(JoinMicrobatchesTest, ShadowsWithTheOptimizerInBackward) {
  const JoinCase c{"", "", {1, 3}, false};
  const std::vector<at::Tensor> values = expected_of(c, 0);
  test::run_ranks(2, [&](dist::World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    test::Mlp model = test::make_mlp(kWidth, kBlocks);
    const auto sharded =
        fully_shard(model.ptr(), test::mlp_plan("null", R"(, "optimizer_in_backward": true)"),
                    {.world = &world, .check_ledger = true});
    sharded->set_optimizer_in_backward({[](std::span<const ShardUpdate> updates) {
      for (const ShardUpdate& each : updates) {
        each.values.sub_(each.grad, 0.1);
      }
    }});
    Join join(*sharded, world, {.divide_by_initial_world_size = false});
    for (uint64_t step = 0; join.next(step < c.batches[rank]) > 0; ++step) {
      if (join.has_batch()) {
        loss_of(model, step, rank).backward();
      } else {
        join.shadow();
      }
      sharded->optimizer_done();
    }
    for (uint32_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(at::allclose(sharded->full_parameter(i), values[i], 1e-4, 1e-6)) << i;
    }
  });
}

// Microbatches without sync: the gradients of the ones that a rank has are added up, and a rank
// that shadows the last one still reduces its earlier ones.
TEST(JoinMicrobatchesTest, EarlierGradientsOfARankWithoutDataCount) {
  test::Mlp whole = test::make_mlp(kWidth, kBlocks);
  for (const auto& [step, rank] : {std::pair{0, 0}, {0, 1}, {1, 0}}) {
    loss_of(whole, static_cast<uint64_t>(step), static_cast<size_t>(rank)).div(2).backward();
  }
  test::run_ranks(2, [&](dist::World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    test::Mlp model = test::make_mlp(kWidth, kBlocks);
    const auto sharded = fully_shard(model.ptr(), test::mlp_plan(), {.world = &world});
    Join join(*sharded, world);
    for (uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
      sharded->set_requires_gradient_sync(microbatch == 1);
      EXPECT_EQ(join.next(rank == 0 || microbatch == 0), microbatch == 0 ? 2 : 1);
      if (join.has_batch()) {
        loss_of(model, microbatch, rank).backward();
      } else {
        join.shadow();
      }
    }
    double all = 0;
    for (const at::Tensor& parameter : whole->parameters()) {
      all += parameter.grad().pow(2).sum().item<double>();
    }
    EXPECT_NEAR(sharded->clip_grad_norm(1e6), std::sqrt(all), 1e-5 * std::sqrt(all));
  });
}

// What a rank without data repeats is its last whole microbatch: not also the forward that threw
// before it.
TEST(JoinMicrobatchesTest, AForwardThatThrewIsNotShadowed) {
  test::Mlp whole = test::make_mlp(kWidth, kBlocks);
  loss_of(whole, 1, 0).div(2).backward();
  double all = 0;
  for (const at::Tensor& parameter : whole->parameters()) {
    all += parameter.grad().pow(2).sum().item<double>();
  }
  test::run_ranks(2, [&](dist::World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    test::Mlp model = test::make_mlp(kWidth, kBlocks);
    const auto sharded =
        fully_shard(model.ptr(), test::mlp_plan(), {.world = &world, .check_ledger = true});
    Join join(*sharded, world);
    EXPECT_EQ(join.next(true), 2);
    EXPECT_THROW(model->forward(at::ones({2, kWidth + 1})), c10::Error);
    loss_of(model, 0, rank).backward();
    sharded->zero_grad();
    EXPECT_EQ(join.next(rank == 0), 1);
    if (join.has_batch()) {
      loss_of(model, 1, rank).backward();
    } else {
      join.shadow();
    }
    EXPECT_NEAR(sharded->clip_grad_norm(1e6), std::sqrt(all), 1e-5 * std::sqrt(all));
  });
}

TEST(JoinMisuseTest, EveryRankSaysWhoHasNoFirstBatch) {
  test::run_ranks(2, [&](dist::World& world) {
    test::Mlp model = test::make_mlp(kWidth, kBlocks);
    const auto sharded = fully_shard(model.ptr(), test::mlp_plan(), {.world = &world});
    Join join(*sharded, world);
    EXPECT_EQ(test::message_of<UsageError>([&] { join.next(world.rank() == 0); }),
              "[rank " + std::to_string(world.rank()) +
                  "] join: 1 of 2 ranks have a batch; no batch, and none before (with fsdp1 and "
                  "forward_prefetch: two), on rank 1");
    EXPECT_EQ(join.next(false), 0);
    EXPECT_EQ(join.next(true), 2);
    EXPECT_THAT(test::message_of<UsageError>([&] { join.shadow(); }),
                testing::HasSubstr("shadow() on a rank that has a batch"));
    EXPECT_THAT(test::message_of<UsageError>([&] { sharded->shadow_microbatch(); }),
                testing::HasSubstr("has not run a forward and backward"));
    loss_of(model, 0, 0).backward();
    EXPECT_EQ(join.next(world.rank() == 0), 1);  // now rank 1 could shadow
  });
}

}  // namespace
}  // namespace shardlens::fsdp
