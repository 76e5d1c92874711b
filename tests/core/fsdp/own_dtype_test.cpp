// Models in fp64, bf16 and fp16 are sharded in their own dtype.
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <torch/optim/sgd.h>

#include "core/base/error.h"
#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Chain;

struct OwnDtype {
  at::ScalarType dtype;
  double tolerance;  // relative to the norm of all gradients
};

at::Tensor own_dtype_loss(Chain& model, at::ScalarType dtype, int step, int rank) {
  const at::Tensor x = test::seeded({3, 5}, static_cast<uint64_t>(100 + 10 * step + rank));
  return model(x.to(dtype)).pow(2).mean();
}

std::vector<std::vector<at::Tensor>> train_plain(at::ScalarType dtype, int ranks, int steps) {
  Chain model = test::make_chain({});
  model->to(dtype);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<std::vector<at::Tensor>> gradients;
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      (own_dtype_loss(model, dtype, step, rank) / ranks).backward();
    }
    gradients.emplace_back();
    for (const at::Tensor& p : model->parameters()) {
      gradients.back().push_back(p.grad().clone());
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return gradients;
}

TEST(OwnDtypeTest, AModelTrainsInItsOwnDtype) {
  const int steps = 2;
  for (const OwnDtype& each :
       {OwnDtype{at::kDouble, 1e-12}, OwnDtype{at::kHalf, 1e-2}, OwnDtype{at::kBFloat16, 1e-1}}) {
    for (const int ranks : {1, 3}) {
      const auto expected = train_plain(each.dtype, ranks, steps);
      for (const std::string choice :
           {R"("layout": "flat")", R"("layout": "per_parameter")", R"("dialect": "fsdp1")"}) {
        test::run_ranks(ranks, [&](dist::World& world) {
          SCOPED_TRACE(fmt::format("{}, {} ranks, {}", toString(each.dtype), ranks, choice));
          Chain model = test::make_chain({});
          model->to(each.dtype);
          const plan::Plan plan = plan::parse_plan(
              R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], )" + choice +
                  "}",
              "test");
          const auto sharded =
              fully_shard(model.ptr(), plan, {.world = &world, .check_ledger = true});
          torch::optim::SGD optimizer(model->parameters(),
                                      torch::optim::SGDOptions(0.1).momentum(0.9));
          for (int step = 0; step < steps; ++step) {
            own_dtype_loss(model, each.dtype, step, world.rank()).backward();
            double error = 0, norm = 0;
            for (const ParameterSlice& slice : sharded->slices()) {
              EXPECT_EQ(slice.values.scalar_type(), each.dtype);
              const at::Tensor grad = model->parameters()[slice.parameter].grad();
              ASSERT_EQ(grad.scalar_type(), each.dtype);
              const at::Tensor whole = expected[static_cast<size_t>(step)][slice.parameter];
              const at::Tensor part =
                  whole.reshape({-1}).narrow(0, slice.offset, slice.values.numel());
              error += (grad - part).to(at::kDouble).pow(2).sum().item<double>();
              norm += whole.to(at::kDouble).pow(2).sum().item<double>();
            }
            EXPECT_LE(std::sqrt(error / norm), each.tolerance) << "step " << step;
            EXPECT_TRUE(std::isfinite(sharded->clip_grad_norm(1e9)));
            optimizer.step();
            optimizer.zero_grad();
            sharded->optimizer_done();
          }
        });
      }
    }
  }
}

TEST(OwnDtypeTest, TheNormOfAModelInFp64IsInFp64) {
  const auto gradients = train_plain(at::kDouble, 2, 1);
  double expected = 0;
  for (const at::Tensor& grad : gradients[0]) {
    expected += grad.pow(2).sum().item<double>();
  }
  expected = std::sqrt(expected);
  for (const std::string layout : {"flat", "per_parameter"}) {
    test::run_ranks(2, [&](dist::World& world) {
      Chain model = test::make_chain({});
      model->to(at::kDouble);
      const auto sharded = fully_shard(
          model.ptr(),
          plan::parse_plan(
              R"({"version": 1, "units": [{"modules": ""}], "layout": ")" + layout + "\"}", "test"),
          {.world = &world});
      own_dtype_loss(model, at::kDouble, 0, world.rank()).backward();
      EXPECT_NEAR(sharded->clip_grad_norm(1e9), expected, 1e-12 * expected);
    });
  }
}

TEST(OwnDtypeTest, AFrozenParameterOfAnotherDtypeInAUnitIsNamed) {
  const plan::Plan plan = plan::parse_plan(
      R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}]})", "test");
  test::run_ranks(2, [&](dist::World& world) {
    Chain model = test::make_chain({});
    model->links[1]->down->to(at::kBFloat16);
    for (const at::Tensor& p : model->links[1]->down->parameters()) {
      p.set_requires_grad(false);
    }
    const auto shard = [&] {
      static_cast<void>(fully_shard(model.ptr(), plan, {.world = &world}));
    };
    EXPECT_THAT(test::message_of<UsageError>(shard),
                testing::AllOf(testing::HasSubstr("unit 'layers.1' mixes dtypes"),
                               testing::HasSubstr("a unit of their own")));
    model->links[1]->down->to(at::kFloat);  // nothing is sharded yet
    EXPECT_EQ(test::message_of<UsageError>(shard), "accepted");
  });
}

// The way that the refusal names: bf16 is stored and computed in fp32, as is what is trained.
TEST(OwnDtypeTest, AFrozenUnitMayHaveAnotherDtypeThanTheTrainedOnes) {
  const auto freeze = [](Chain& model) {
    model->links[1]->to(at::kBFloat16);
    for (const at::Tensor& p : model->links[1]->parameters()) {
      p.set_requires_grad(false);
    }
  };
  Chain plain = test::make_chain({});
  freeze(plain);
  plain->to(at::kFloat);  // with the values that bf16 has
  for (int rank = 0; rank < 2; ++rank) {
    (own_dtype_loss(plain, at::kFloat, 0, rank) / 2).backward();
  }
  for (const std::string choice :
       {R"("layout": "flat")", R"("layout": "per_parameter")", R"("dialect": "fsdp1")"}) {
    test::run_ranks(2, [&](dist::World& world) {
      SCOPED_TRACE(choice);
      Chain model = test::make_chain({});
      freeze(model);
      const auto sharded =
          fully_shard(model.ptr(),
                      plan::parse_plan(
                          R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.0"},
                  {"modules": "layers.1", "mixed_precision": {"param_dtype": "fp32"}}], )" +
                              choice + "}",
                          "test"),
                      {.world = &world, .check_ledger = true});
      own_dtype_loss(model, at::kFloat, 0, world.rank()).backward();
      for (const ParameterSlice& slice : sharded->slices()) {
        const std::string& fqn = sharded->plan().tree.parameters[slice.parameter].fqn;
        const bool frozen = fqn.starts_with("layers.1.");
        EXPECT_EQ(slice.values.scalar_type(), frozen ? at::kBFloat16 : at::kFloat) << fqn;
        const at::Tensor grad = model->parameters()[slice.parameter].grad();
        ASSERT_EQ(grad.defined(), !frozen) << fqn;
        if (!frozen) {
          const at::Tensor part = plain->parameters()[slice.parameter].grad().reshape({-1}).narrow(
              0, slice.offset, slice.values.numel());
          EXPECT_TRUE(at::allclose(grad, part, 1e-5, 1e-6)) << fqn;
        }
      }
    });
  }
}

TEST(OwnDtypeTest, AParameterThatCannotBeTrainedIsNamed) {
  test::run_ranks(1, [](dist::World& world) {
    Chain model = test::make_chain({});
    model->to(at::kFloat8_e5m2);
    EXPECT_THAT(
        test::message_of<UsageError>([&] {
          static_cast<void>(fully_shard(model.ptr(), plan::parse_plan(R"({"version": 1})", "test"),
                                        {.world = &world}));
        }),
        testing::HasSubstr("'in.weight' of unit the root is Float8_e5m2; expected Float"));
  });
}

}  // namespace
}  // namespace shardlens::fsdp
