// Forwards outside training, for evaluation between steps, and methods other than forward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <torch/optim/adamw.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/module/forward_method.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Chain;

constexpr int kForwardRanks = 2;
constexpr const char* kForwardsPlans[] = {
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}]})",
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "reshard_after_forward": false})",
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "layout": "per_parameter"})",
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "mesh": {"shard": 1}})",
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "dialect": "fsdp1"})"};

at::Tensor input_of(int step, int rank) {
  return test::seeded({3, 5}, static_cast<uint64_t>(100 + step * kForwardRanks + rank));
}

// Values of an evaluation after each step, from one process that has the data of all ranks.
std::vector<at::Tensor> evaluations_of_plain_training(int steps) {
  Chain model = test::make_chain({});
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<at::Tensor> values;
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < kForwardRanks; ++rank) {
      (model(input_of(step, rank)).pow(2).mean() / kForwardRanks).backward();
    }
    optimizer.step();
    optimizer.zero_grad();
    const at::NoGradGuard no_grad;
    values.push_back(model(input_of(0, 0)));
  }
  return values;
}

TEST(ForwardsTest, EvaluationBetweenStepsSeesTheLastStepAndChangesNothing) {
  constexpr int kTrained = 3;
  const std::vector<at::Tensor> wanted = evaluations_of_plain_training(kTrained);
  for (const char* plan : kForwardsPlans) {
    SCOPED_TRACE(plan);
    test::run_ranks(kForwardRanks, [&](dist::World& world) {
      Chain model = test::make_chain({});
      const auto sharded = fully_shard(model.ptr(), plan::parse_plan(plan, "test"),
                                       {.world = &world, .check_ledger = true});
      torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
      for (int step = 0; step < kTrained; ++step) {
        model->train();
        model(input_of(step, world.rank())).pow(2).mean().backward();
        optimizer.step();
        sharded->optimizer_done();
        optimizer.zero_grad();
        model->eval();
        const at::NoGradGuard no_grad;
        for (int batch = 0; batch < 2; ++batch) {  // an evaluation has several batches
          const at::Tensor value = model(input_of(0, 0));
          EXPECT_FALSE(value.requires_grad());
          EXPECT_TRUE(at::allclose(value, wanted[static_cast<size_t>(step)], 1e-4, 1e-6)) << step;
        }
      }
    });
  }
}

// An auto-encoder: its training calls two methods, and `forward` not at all.
struct CoderImpl : torch::nn::Module {
  CoderImpl()
      : up(register_module("up", torch::nn::Linear(5, 3))),
        down(register_module("down", torch::nn::Linear(3, 5))) {}
  at::Tensor forward(const at::Tensor& x) { return decode(encode(x)); }
  at::Tensor encode(const at::Tensor& x) { return up(x); }
  [[nodiscard]] at::Tensor decode(const at::Tensor& code) const {
    return const_cast<torch::nn::Linear&>(down)(code);  // NOLINT: LibTorch's forward is not const
  }
  at::Tensor fail(const at::Tensor& x) {
    static_cast<void>(up(x));
    throw test::InjectedFailure("in a method");
  }
  torch::nn::Linear up, down;
};
SHARDLENS_MODULE(Coder);

Coder make_coder() {
  Coder model;
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (at::Tensor& p : model->parameters()) {
    p.copy_(test::seeded(p.sizes(), seed++));
  }
  return model;
}

at::Tensor loss_by_methods(Coder& model, const at::Tensor& x) {
  const at::Tensor code = module::run_as_forward(*model, &CoderImpl::encode, x);
  return (module::run_as_forward(*model, &CoderImpl::decode, code) - x).pow(2).mean();
}

TEST(ForwardsTest, MethodsRunAsForwards) {
  Coder plain = make_coder();
  for (int rank = 0; rank < kForwardRanks; ++rank) {
    (loss_by_methods(plain, input_of(0, rank)) / kForwardRanks)
        .backward();  // no hooks: just the methods
  }
  for (const char* layout : {"flat", "per_parameter"}) {
    test::run_ranks(kForwardRanks, [&](dist::World& world) {
      Coder model = make_coder();
      const auto sharded =
          fully_shard(model.ptr(),
                      plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}], "layout": ")" +
                                           std::string(layout) + "\"}",
                                       "test"),
                      {.world = &world, .check_ledger = true});
      for (int step = 0; step < 2; ++step) {
        sharded->zero_grad();
        loss_by_methods(model, input_of(0, world.rank())).backward();
        EXPECT_EQ(sharded->unsharded_bytes(), 0);
        for (const ParameterSlice& slice : sharded->slices()) {
          const at::Tensor& shown = model->parameters()[slice.parameter].grad();
          EXPECT_TRUE(at::allclose(shown.flatten(),
                                   plain->parameters()[slice.parameter].grad().reshape({-1}).narrow(
                                       0, slice.offset, shown.numel()),
                                   1e-5, 1e-6));
        }
        EXPECT_THROW(module::run_as_forward(*model, &CoderImpl::fail, input_of(0, 0)),
                     test::InjectedFailure);
        EXPECT_EQ(sharded->unsharded_bytes(), 0);
      }
    });
  }
}

TEST(ForwardsTest, ModuleWithoutHooksJustRunsTheMethod) {
  CoderImpl model;
  const at::Tensor x = input_of(0, 0);
  EXPECT_TRUE(at::equal(module::run_as_forward(model, &CoderImpl::encode, x), model.encode(x)));
}

}  // namespace
}  // namespace shardlens::fsdp
