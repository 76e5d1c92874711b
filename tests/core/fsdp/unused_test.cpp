// Parameters that some or all ranks do not use, compared with PyTorch
// (tests/tools/unused_reference.py).
#include <fstream>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/allclose.h>
#include <ATen/ops/tensor.h>
#include <torch/optim/adamw.h>

#include "core/base/error.h"
#include "core/base/recorder.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kUnusedRanks = 2;

struct ForkImpl : torch::nn::Module {
  ForkImpl()
      : a(register_module("a", torch::nn::Linear(5, 5))),
        b(register_module("b", torch::nn::Linear(5, 5))),
        never(register_module("never", torch::nn::Linear(5, 5))) {}
  at::Tensor forward(const at::Tensor& x) { return branch == "a" ? a(x) : b(x); }
  torch::nn::Linear a, b, never;
  std::string branch;
};
SHARDLENS_MODULE(Fork);

Fork make_fork(const std::string& branch) {
  Fork model;
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (at::Tensor& p : model->parameters()) {
    p.copy_(test::seeded(p.sizes(), seed++));
  }
  model->branch = branch;
  return model;
}

void backward(Fork& model) {
  model(test::seeded({3, 5}, 7)).pow(2).mean().backward();
}

plan::Plan unused_plan_of(const std::string& dialect, const std::string& layout) {
  return plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}], "dialect": ")" + dialect +
                              R"(", "layout": ")" + layout + "\"}",
                          "test");
}

// Elements of the inputs of reduce-scatters.
struct Reduced : NullRecorder {
  void collective(const CollectiveRecord& record) override {
    if (record.kind == CollectiveKind::kReduceScatter) {
      const std::lock_guard lock(mutex);
      numels.push_back(record.in_nelems);
    }
  }
  std::mutex mutex;
  std::vector<int64_t> numels;
};

void expect_grads(Fork& model, const json& recorded) {
  const std::vector<at::Tensor> parameters = model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& grad = parameters[i].grad();
    if (recorded[i].is_null()) {
      EXPECT_TRUE(!grad.defined() || grad.numel() == 0) << i;
      continue;
    }
    ASSERT_TRUE(grad.defined()) << i;
    EXPECT_TRUE(
        at::allclose(grad.flatten(), at::tensor(recorded[i].get<std::vector<float>>()), 1e-5, 1e-6))
        << i;
  }
}

void expect_as_recorded(const std::string& file, size_t cases, bool zeros) {
  json recorded;
  std::ifstream(std::string(SHARDLENS_TEST_DATA) + "/" + file) >> recorded;
  ASSERT_EQ(recorded["cases"].size(), cases);
  for (const json& each : recorded["cases"]) {
    SCOPED_TRACE(each["api"].dump() + each["branches"].dump());
    const std::string dialect = each["api"];
    test::run_ranks(kUnusedRanks, [&](dist::World& world) {
      Reduced reduced;
      world.set_recorder(&reduced);
      Fork model = make_fork(each["branches"][static_cast<size_t>(world.rank())]);
      plan::Plan plan = unused_plan_of(dialect, dialect == "fsdp1" ? "flat" : "per_parameter");
      plan.reduce_scatter_unused_params = zeros;
      const auto sharded = fully_shard(model.ptr(), plan, {.world = &world, .check_ledger = true});
      torch::optim::AdamW optimizer(model->parameters(),
                                    torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
      for (const json& step : each["steps"]) {
        reduced.numels.clear();
        backward(model);
        EXPECT_EQ(reduced.numels, step["reduced"].get<std::vector<int64_t>>());
        expect_grads(model, step["grads"][static_cast<size_t>(world.rank())]);
        optimizer.step();
        optimizer.zero_grad();
        sharded->optimizer_done();
      }
      for (uint32_t i = 0; i < each["parameters"].size(); ++i) {
        EXPECT_TRUE(at::allclose(sharded->full_parameter(i).flatten(),
                                 at::tensor(each["parameters"][i].get<std::vector<float>>()), 1e-5,
                                 1e-6))
            << i;
      }
      world.set_recorder(nullptr);
    });
  }
}

TEST(UnusedTest, EqualsWhatPyTorchRecorded) {
  expect_as_recorded("unused.json", 4, /*zeros=*/false);
}

// Of torch 2.15, on ranks that use the same and different parameters.
TEST(UnusedTest, ZerosOfUnusedParametersAreThoseThatPyTorchRecorded) {
  expect_as_recorded("unused_zeros.json", 2, /*zeros=*/true);
}

// Runs `b` for nothing.
struct DropImpl : torch::nn::Module {
  DropImpl() : a(register_module("a", test::Link(5))), b(register_module("b", test::Link(5))) {}
  at::Tensor forward(const at::Tensor& x) {
    static_cast<void>(b(x));
    return a(x);
  }
  test::Link a, b;
};
SHARDLENS_MODULE(Drop);

// A unit of which no parameter has a gradient is reduced, too, in both layouts.
TEST(UnusedTest, AUnitWithoutGradientsIsReducedAsZeros) {
  for (const char* layout : {"flat", "per_parameter"}) {
    for (const bool zeros : {false, true}) {
      test::run_ranks(kUnusedRanks, [&](dist::World& world) {
        Reduced reduced;
        world.set_recorder(&reduced);
        Drop model;
        plan::Plan plan = plan::parse_plan(
            R"({"version": 1, "units": [{"modules": ""}, {"modules": "a"}, {"modules": "b"}]})",
            "test");
        plan.layout =
            layout == std::string("flat") ? plan::Layout::kFlat : plan::Layout::kPerParameter;
        plan.reduce_scatter_unused_params = zeros;
        const auto sharded =
            fully_shard(model.ptr(), plan, {.world = &world, .check_ledger = true});
        model(test::seeded({3, 5}, 7)).pow(2).mean().backward();
        EXPECT_EQ(reduced.numels.size(), zeros ? 2U : 1U) << layout;
        for (const at::Tensor& part : model->b->parameters()) {
          if (part.numel() > 0) {  // a rank may have nothing of a parameter
            EXPECT_EQ(part.grad().defined(), zeros) << layout;
            EXPECT_TRUE(!zeros || part.grad().abs().sum().item<float>() == 0) << layout;
          }
        }
        world.set_recorder(nullptr);
      });
    }
  }
}

// A parameter that a rank did not use counts as zero in the mean.
TEST(UnusedTest, RanksMayUseDifferentParametersOfAFlatUnit) {
  Fork plain = make_fork("a");
  for (int rank = 0; rank < kUnusedRanks; ++rank) {
    plain->branch = rank == 0 ? "a" : "b";
    (plain(test::seeded({3, 5}, 7)).pow(2).mean() / kUnusedRanks).backward();
  }
  test::run_ranks(kUnusedRanks, [&](dist::World& world) {
    Fork model = make_fork(world.rank() == 0 ? "a" : "b");
    const auto sharded = fully_shard(model.ptr(), unused_plan_of("fsdp2", "flat"),
                                     {.world = &world, .check_ledger = true});
    backward(model);
    for (const ParameterSlice& slice : sharded->slices()) {
      const at::Tensor expected = plain->parameters()[slice.parameter].grad();
      const at::Tensor shown = model->parameters()[slice.parameter].grad();
      if (expected.defined()) {
        EXPECT_TRUE(at::allclose(
            shown, expected.reshape({-1}).narrow(0, slice.offset, shown.numel()), 1e-5, 1e-6));
      } else {
        EXPECT_EQ(shown.abs().sum().item<float>(), 0);  // `never`
      }
    }
  });
}

// In the per-parameter layout, ranks must use the same parameters, as in FSDP2. With checks between
// ranks, the error names the differences.
TEST(UnusedTest, RanksThatUseDifferentParametersPerParameterAreNamed) {
  std::vector<std::string> said(kUnusedRanks);
  test::run_ranks(
      kUnusedRanks,
      [&](dist::World& world) {
        try {
          Fork model = make_fork(world.rank() == 0 ? "a" : "b");
          const auto sharded =
              fully_shard(model.ptr(), unused_plan_of("fsdp2", "per_parameter"), {.world = &world});
          backward(model);
        } catch (const RuntimeFault& error) {
          said[static_cast<size_t>(world.rank())] = error.what();
        }
      },
      [](dist::WorldOptions& options) { options.check_ranks = true; });
  EXPECT_THAT(said, Each(AllOf(HasSubstr("rank 0: reduces gradients of 'a.weight', 'a.bias'"),
                               HasSubstr("rank 1: reduces gradients of 'b.weight', 'b.bias'"))));
}

// A microbatch without sync may use parameters that the others do not.
TEST(UnusedTest, MicrobatchesMayUseDifferentParameters) {
  Fork plain = make_fork("a");
  for (int rank = 0; rank < kUnusedRanks; ++rank) {
    for (const char* branch : {"a", "b", "b"}) {
      plain->branch = branch;
      (plain(test::seeded({3, 5}, 7)).pow(2).mean() / kUnusedRanks).backward();
    }
  }
  for (const bool in_bf16 : {false, true}) {  // in bf16, gradients wait in the reduction's input
    test::run_ranks(kUnusedRanks, [&](dist::World& world) {
      Fork model = make_fork("a");
      plan::Plan plan = unused_plan_of("fsdp2", "per_parameter");
      if (in_bf16) {
        plan.mixed_precision.reduce_dtype = DType::kBF16;
      }
      const auto sharded = fully_shard(model.ptr(), plan, {.world = &world, .check_ledger = true});
      sharded->set_requires_gradient_sync(false);
      backward(model);
      model->branch = "b";
      backward(model);
      sharded->set_requires_gradient_sync(true);
      backward(model);
      const double tolerance = in_bf16 ? 2e-2 : 1e-5;
      for (const ParameterSlice& slice : sharded->slices()) {
        const at::Tensor expected = plain->parameters()[slice.parameter].grad();
        const at::Tensor shown = model->parameters()[slice.parameter].grad();
        ASSERT_EQ(expected.defined(), shown.defined());
        if (expected.defined()) {
          EXPECT_TRUE(at::allclose(shown.flatten(),
                                   expected.reshape({-1}).narrow(0, slice.offset, shown.numel()),
                                   tolerance, tolerance));
        }
      }
    });
  }
}

TEST(UnusedTest, AUnitThatNoRankUsesHasNoGradient) {
  test::run_ranks(kUnusedRanks, [](dist::World& world) {
    test::Chain model = test::make_chain({.calls = {0, 2}});
    const auto sharded = fully_shard(
        model.ptr(),
        plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}]})",
                         "test"),
        {.world = &world, .check_ledger = true});
    for (int step = 0; step < 2; ++step) {
      model(test::seeded({3, 5}, static_cast<uint64_t>(step))).pow(2).mean().backward();
      EXPECT_FALSE(model->links[1]->up->weight.grad().defined());
      EXPECT_TRUE(model->links[0]->up->weight.grad().defined());
      EXPECT_EQ(sharded->unsharded_bytes(), 0);
      sharded->optimizer_done();
    }
  });
}

}  // namespace
}  // namespace shardlens::fsdp
