// Whole parameters in a scope.
#include "core/fsdp/apply/full_parameters.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/sgd.h>

#include "core/base/error.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/fsdp/apply/sharded_unit.h"
#include "tests/core/fsdp/chain.h"
#include "tests/core/fsdp/emulated_world.h"
#include "tests/core/fsdp/fake_device.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Chain;
using test::make_chain;
using test::seeded;
using ::testing::AllOf;
using ::testing::HasSubstr;

plan::Plan plan_with(const std::string& more) {
  return plan::parse_plan(
      R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}])" + more + "}", "test");
}

at::Tensor loss_of(Chain& model) {
  return model(seeded({3, 5}, 7)).pow(2).mean();
}

// Whether all parameters have the shapes and `factor` times the values of the unsharded model's.
bool are_whole(Chain& model, Chain& whole, double factor = 1) {
  const auto expected = whole->parameters();
  const auto seen = model->parameters();
  for (size_t i = 0; i < expected.size(); ++i) {
    if (seen[i].sizes() != expected[i].sizes() ||
        !at::equal(seen[i].detach().cpu(), expected[i].detach() * factor)) {
      return false;
    }
  }
  return true;
}

void scale(Chain& model, double factor) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model->parameters()) {
    parameter.mul_(factor);
  }
}

struct ScopeCase {
  const char* name;
  const char* plan;
  int ranks = 2;
};

class FullParametersTest : public testing::TestWithParam<ScopeCase> {};

TEST_P(FullParametersTest, AreWholeInTheScopeAndWrittenBack) {
  const ScopeCase& c = GetParam();
  test::run_ranks(c.ranks, [&](dist::World& world) {
    Chain model = make_chain({}), whole = make_chain({});
    const auto sharded =
        fully_shard(model.ptr(), plan_with(c.plan), {.world = &world, .check_ledger = true});
    const bool shared = sharded->plan().shards() == 1 && !sharded->plan().plan.cpu_offload;
    for (const bool writeback : {false, true}) {
      FullParameters scope(model.ptr(), {.writeback = writeback});
      EXPECT_TRUE(are_whole(model, whole));
      for (const at::Tensor& parameter : model->parameters()) {
        EXPECT_TRUE(parameter.is_leaf() && parameter.requires_grad());
      }
      // What is written lasts only with writeback, or if the memory is the shard's.
      if (writeback || !shared) {
        scale(model, 2);
      }
      scope.close();
      EXPECT_EQ(model->links[0]->up->weight.dim(), 1);
      EXPECT_EQ(sharded->unsharded_bytes(), 0);
    }
    // The model goes on with what was written.
    Chain doubled = make_chain({});
    scale(doubled, 2);
    const at::Tensor expected = loss_of(doubled), loss = loss_of(model);
    EXPECT_TRUE(at::allclose(loss, expected, 1e-5, 1e-6));
    loss.backward();
    expected.backward();
    const FullParameters scope(model.ptr(), {.writeback = false, .with_grads = true});
    const auto seen = model->parameters(), wanted = doubled->parameters();
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_TRUE(seen[i].grad().defined());
      EXPECT_TRUE(at::allclose(seen[i].grad(), wanted[i].grad(), 1e-4, 1e-5)) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Plans,
    FullParametersTest,
    testing::Values(ScopeCase{"flat", ""},
                    ScopeCase{"per_parameter", R"(, "layout": "per_parameter")", 3},
                    ScopeCase{"fsdp1", R"(, "dialect": "fsdp1")", 3},
                    ScopeCase{"offloaded", R"(, "cpu_offload": true)"},
                    ScopeCase{"hybrid", R"(, "mesh": {"replicate": 2, "shard": 2})", 4},
                    ScopeCase{"replicated", R"(, "mesh": {"replicate": 2, "shard": 1})", 2},
                    ScopeCase{"one_rank", "", 1}),
    [](const auto& each) { return std::string(each.param.name); });

// With bf16 in forward, the scope still has the master values.
TEST(FullParametersScopeTest, HasMasterValues) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({}), whole = make_chain({});
    const auto sharded =
        fully_shard(model.ptr(), plan_with(R"(, "mixed_precision": {"param_dtype": "bf16"})"),
                    {.world = &world});
    const FullParameters scope(model.ptr());
    EXPECT_TRUE(are_whole(model, whole));
  });
}

// torch 2.11, test_fsdp_summon_full_params.py: rank 0 alone, and units of which only some are
// summoned.
TEST(FullParametersScopeTest, OfRankZeroOrOfSomeUnits) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({}), whole = make_chain({});
    const auto sharded = fully_shard(model.ptr(), plan_with(""), {.world = &world});
    {
      const FullParameters scope(model.ptr(), {.writeback = false, .rank0_only = true});
      EXPECT_EQ(are_whole(model, whole), world.rank() == 0);
      EXPECT_EQ(model->in->weight.dim(), world.rank() == 0 ? 2 : 1);
    }
    {
      const FullParameters scope(model.ptr(), {.recurse = false});
      EXPECT_EQ(model->in->weight.dim(), 2);
      EXPECT_EQ(model->links[1]->up->weight.dim(), 1);
    }
    {
      const FullParameters scope(model->links[1].ptr());
      EXPECT_EQ(model->in->weight.dim(), 1);
      EXPECT_EQ(model->links[1]->up->weight.dim(), 2);
    }
    {  // no unit of its own
      const FullParameters scope(model->links[1]->up.ptr(), {.recurse = false});
      EXPECT_EQ(model->links[1]->up->weight.dim(), 1);
    }
    loss_of(model).backward();
  });
}

// Units that fully_shard was applied to one by one get their root here, as in a forward.
TEST(FullParametersScopeTest, DeterminesTheRoot) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({}), whole = make_chain({});
    const plan::Plan settings = plan::parse_plan(R"({"version": 1})", "test");
    for (const auto& link : model->links) {
      fully_shard_unit({link.ptr()}, settings, {.world = &world});
    }
    fully_shard_unit({model.ptr()}, settings, {.world = &world});
    {
      const FullParameters scope(model.ptr());
      EXPECT_TRUE(are_whole(model, whole));
    }
    EXPECT_EQ(lazy_init(model.ptr())->plan().units.size(), 4U);
    loss_of(model).backward();
  });
}

TEST(FullParametersScopeTest, GradientsAreWrittenBackAndReset) {
  for (const char* layout : {"flat", "per_parameter"}) {
    test::run_ranks(2, [&](dist::World& world) {
      const auto step = [&](bool change) {
        Chain model = make_chain({});
        const auto sharded =
            fully_shard(model.ptr(), plan_with(std::string(R"(, "layout": ")") + layout + "\""),
                        {.world = &world});
        torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1.0));
        loss_of(model).backward();
        if (change) {
          const at::NoGradGuard no_grad;
          const FullParameters scope(model.ptr(), {.with_grads = true});
          for (at::Tensor& parameter : model->parameters()) {
            parameter.mutable_grad().mul_(2);
          }
          model->in->weight.mutable_grad() = at::Tensor();
        }
        {
          // Without with_grads there are none in the scope, and those of before are kept.
          const FullParameters scope(model.ptr());
          EXPECT_FALSE(model->links[0]->up->weight.grad().defined());
        }
        EXPECT_EQ(model->in->weight.grad().defined(), !change);
        optimizer.step();
        sharded->optimizer_done();
        std::vector<at::Tensor> values;
        for (uint32_t i = 0; i < sharded->plan().tree.parameters.size(); ++i) {
          values.push_back(sharded->full_parameter(i));
        }
        return values;
      };
      const std::vector<at::Tensor> once = step(false), twice = step(true);
      const auto start = make_chain({})->parameters();
      for (size_t i = 0; i < start.size(); ++i) {
        const at::Tensor update = once[i] - start[i].detach();
        const double factor = i == 0 ? 0 : 2;  // the first is the reset one
        EXPECT_TRUE(at::allclose(twice[i] - start[i].detach(), update * factor, 1e-4, 1e-6)) << i;
      }
    });
  }
}

// A unit that an evaluation or the user has left unsharded.
TEST(FullParametersScopeTest, UnshardedUnitsGetTheValues) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({}), doubled = make_chain({});
    scale(doubled, 2);
    const auto sharded = fully_shard(model.ptr(), plan_with(R"(, "reshard_after_forward": false)"),
                                     {.world = &world, .check_ledger = true});
    {
      const at::NoGradGuard no_grad;
      loss_of(model);
    }
    ShardedUnit(model->links[0].ptr()).unshard();
    {
      const FullParameters scope(model.ptr());
      scale(model, 2);
    }
    EXPECT_TRUE(at::allclose(loss_of(model), loss_of(doubled), 1e-5, 1e-6));
    loss_of(model).backward();
  });
}

TEST(FullParametersScopeTest, MisuseIsNamed) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({});
    const auto sharded = fully_shard(model.ptr(), plan_with(""), {.world = &world});
    const auto refusal = [&](const SummonOptions& options) {
      return test::message_of<UsageError>(
          [&] { const FullParameters scope(model.ptr(), options); });
    };
    EXPECT_THAT(refusal({.rank0_only = true}), HasSubstr("writeback with rank0_only"));
    EXPECT_THAT(refusal({.offload_to_cpu = true, .with_grads = true}),
                HasSubstr("with_grads with offload_to_cpu"));
    sharded->set_requires_gradient_sync(false);
    loss_of(model).backward();
    EXPECT_THAT(refusal({.with_grads = true}), HasSubstr("not reduced yet"));
    sharded->zero_grad();
    sharded->set_requires_gradient_sync(true);

    const at::Tensor loss = loss_of(model);
    {
      FullParameters scope(model.ptr());
      EXPECT_THAT(refusal({}), HasSubstr("another scope"));
      const std::vector<std::string> seen{
          test::message_of<UsageError>([&] { loss_of(model); }),
          test::message_of<UsageError>([&] { loss.backward(); }),
          test::message_of<UsageError>([&] { sharded->zero_grad(); }),
          test::message_of<UsageError>([&] { static_cast<void>(sharded->slices()); }),
          test::message_of<UsageError>([&] { static_cast<void>(sharded->full_parameter(0)); }),
          test::message_of<UsageError>([&] { ShardedUnit(model.ptr()).unshard(); })};
      EXPECT_THAT(seen, testing::Each(HasSubstr("in a scope FullParameters")));
      const at::NoGradGuard no_grad;
      model->links[1]->up->weight.set_data(at::zeros({2, 2}));
      EXPECT_THAT(test::message_of<UsageError>([&] { scope.close(); }),
                  AllOf(HasSubstr("'layers.1.up.weight' was given values of shape [2, 2]"),
                        HasSubstr("expected [7, 5]")));
    }
    model->links[1]->fail_forward = true;
    EXPECT_THROW(loss_of(model), test::InjectedFailure);
    model->links[1]->fail_forward = false;
    loss_of(model).backward();
  });
}

struct SummonerImpl : torch::nn::Module {
  explicit SummonerImpl(Chain inside) : chain(register_module("chain", std::move(inside))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor out = chain(x);
    const FullParameters scope(chain.ptr());
    return out;
  }
  Chain chain;
};
SHARDLENS_MODULE(Summoner);

TEST(FullParametersScopeTest, NotWithinAForward) {
  test::run_ranks(2, [](dist::World& world) {
    Summoner model(make_chain({}));
    const auto sharded = fully_shard(
        model.ptr(), plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}]})", "test"),
        {.world = &world});
    EXPECT_THAT(test::message_of<UsageError>([&] {
                  model(seeded({3, 5}, 7));
                }),
                HasSubstr("during a forward or backward"));
  });
}

TEST(FullParametersScopeTest, OffloadedToTheHostOnADevice) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const test::DeviceScope device(seed);
    const auto world = test::emulated_world(2, test::kFakeDevice);
    Chain model = make_chain({});
    test::move_to_device(*model);
    const auto sharded = fully_shard(model.ptr(), plan_with(""), {.world = world.get()});
    for (const bool rank0_only : {false, true}) {
      FullParameters scope(
          model.ptr(),
          {.writeback = !rank0_only, .rank0_only = rank0_only, .offload_to_cpu = true});
      for (const at::Tensor& parameter : model->parameters()) {
        EXPECT_TRUE(parameter.is_cpu());
        EXPECT_GE(parameter.dim(), 1);
      }
      scale(model, 1.5);
      scope.close();
      EXPECT_EQ(model->in->weight.device(), test::kFakeDevice);
    }
    model(seeded({3, 5}, 7).to(test::kFakeDevice)).pow(2).mean().backward();
  }
}

}  // namespace
}  // namespace shardlens::fsdp
