// Activation checkpointing: without units, and inside and around units.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "core/base/error.h"
#include "core/composable/registry.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/module/activation_checkpoint.h"
#include "core/module/hookable.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::module {
namespace {

using test::Chain;
using test::make_chain;
using test::seeded;
using ::testing::HasSubstr;

// Linear, ReLU, Linear; counts forwards that begin and end, and observes whether the activations
// between the linears are still kept.
struct ProbeImpl : torch::nn::Module {
  ProbeImpl()
      : up(register_module("up", torch::nn::Linear(4, 6))),
        down(register_module("down", torch::nn::Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    ++begun;
    const at::Tensor hidden = at::relu(up(x));
    between.push_back(hidden.storage().getWeakStorageImpl());
    at::Tensor out = down(hidden);
    ++ended;
    return out;
  }
  torch::nn::Linear up, down;
  int begun = 0, ended = 0;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> between;
};
SHARDLENS_MODULE(Probe);

TEST(CheckpointTest, DropsWhatForwardKeepsAndRunsItAgainUpToTheLastOfIt) {
  Probe plain, probe;
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < plain->parameters().size(); ++i) {
      probe->parameters()[i].copy_(plain->parameters()[i]);
    }
  }
  checkpoint(probe.ptr(), "probe");
  EXPECT_TRUE(composable::has_api(*probe, "checkpoint"));
  const at::Tensor x = seeded({3, 4}, 1), y = seeded({3, 4}, 1);
  const at::Tensor expected = plain(x.requires_grad_()), out = probe(y.requires_grad_());
  EXPECT_FALSE(plain->between[0].expired());
  EXPECT_TRUE(probe->between[0].expired());
  EXPECT_TRUE(at::equal(out, expected));
  expected.pow(2).sum().backward();
  out.pow(2).sum().backward();
  EXPECT_EQ(probe->begun, 2);
  EXPECT_EQ(probe->ended, 1);  // recomputation ends with the last linear's input
  EXPECT_TRUE(probe->between[1].expired());
  EXPECT_TRUE(at::equal(y.grad(), x.grad()));
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(probe->parameters()[i].grad(), plain->parameters()[i].grad()));
  }
}

TEST(CheckpointTest, WithoutGradientsNothingIsKeptNorRunAgain) {
  Probe probe;
  checkpoint(probe.ptr());
  const at::NoGradGuard no_grad;
  static_cast<void>(probe(seeded({3, 4}, 1)));
  EXPECT_EQ(probe->ended, 1);
}

TEST(CheckpointTest, EveryBackwardThroughARetainedGraphRunsItAgain) {
  Probe probe;
  checkpoint(probe.ptr());
  const at::Tensor out = probe(seeded({3, 4}, 1)).sum();
  out.backward({}, /*retain_graph=*/true);
  const at::Tensor once = probe->up->weight.grad().clone();
  out.backward();
  EXPECT_EQ(probe->begun, 3);
  EXPECT_TRUE(at::equal(probe->up->weight.grad(), 2 * once));
}

struct NestedImpl : torch::nn::Module {
  NestedImpl() : inner(register_module("inner", Probe())) {}
  at::Tensor forward(const at::Tensor& x) { return at::relu(inner(at::relu(x))); }
  Probe inner;
};
SHARDLENS_MODULE(Nested);

TEST(CheckpointTest, OneInsideAnother) {
  Nested nested;
  const at::Tensor x = seeded({3, 4}, 1);
  nested(x).sum().backward();
  const at::Tensor expected = nested->inner->up->weight.grad().clone();
  nested->zero_grad();
  checkpoint(nested->inner.ptr(), "inner");
  checkpoint(nested.ptr(), "");
  nested(x).sum().backward();
  EXPECT_TRUE(at::equal(nested->inner->up->weight.grad(), expected));
}

struct DropoutImpl : torch::nn::Module {
  DropoutImpl() : weight(register_parameter("weight", at::ones({8}))) {}
  at::Tensor forward(const at::Tensor& x) { return at::dropout(x, 0.5, /*train=*/true) * weight; }
  at::Tensor weight;
};
SHARDLENS_MODULE(Dropout);

TEST(CheckpointTest, RandomNumbersComeAgain) {
  Dropout model;
  checkpoint(model.ptr());
  const at::Tensor out = model(at::ones({16, 8}));
  static_cast<void>(at::dropout(at::ones({100}), 0.5, true));  // uses the same generator
  out.sum().backward();
  EXPECT_TRUE(at::equal(model->weight.grad(), out.sum(0)));  // the same mask, weight 1
}

// As in most programs, backward runs after the autocast has ended.
TEST(CheckpointTest, AutocastComesAgain) {
  const auto gradient = [](bool checkpointed) {
    Probe probe;
    {
      const at::NoGradGuard no_grad;
      uint64_t seed = 1;
      for (at::Tensor& p : probe->parameters()) {
        p.copy_(seeded(p.sizes(), seed++));
      }
    }
    if (checkpointed) {
      checkpoint(probe.ptr());
    }
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor out = probe(seeded({3, 4}, 9));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    out.sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    return probe->up->weight.grad();
  };
  EXPECT_TRUE(at::equal(gradient(true), gradient(false)));
}

// The second forward differs from the first: it saves other tensors, or fewer.
struct FickleImpl : torch::nn::Module {
  FickleImpl() : weight(register_parameter("weight", at::ones({4}))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (++calls == 2 && fewer) {
      return x * 2;
    }
    return calls == 2 ? (x.narrow(0, 0, 1) * weight).expand_as(x) : x * weight;
  }
  at::Tensor weight;
  bool fewer = false;
  int calls = 0;
};
SHARDLENS_MODULE(Fickle);

TEST(CheckpointTest, ForwardThatDoesNotDoTheSameAgainIsNamed) {
  for (const bool fewer : {false, true}) {
    Fickle model;
    model->fewer = fewer;
    checkpoint(model.ptr(), "layers.3");
    const at::Tensor out = model(seeded({2, 4}, 1)).sum();
    EXPECT_THAT(test::message_of([&] { out.backward(); }),
                HasSubstr("the forward of 'layers.3' did not run the same in backward"));
  }
}

TEST(CheckpointTest, WhatCannotBeCheckpointedIsNamed) {
  Probe probe;
  checkpoint(probe.ptr(), "probe");
  EXPECT_THAT(test::message_of([&] { checkpoint(probe.ptr(), "probe"); }),
              HasSubstr("checkpoint has already been applied"));
  EXPECT_THAT(test::message_of([&] { checkpoint(probe->up.ptr(), "probe.up"); }),
              HasSubstr("'probe.up' (Linear) has no hooks"));
  EXPECT_THAT(test::message_of([&] { checkpoint(torch::nn::ModuleList().ptr(), "layers"); }),
              HasSubstr("'layers'"));
}

// ---- with fully_shard

struct Case {
  std::string units, checkpoints;
  std::string more;  // keys of the plan
};

std::vector<at::Tensor> trained(const Case& c, bool checkpointed, dist::World& world) {
  Chain model = make_chain({.encased = true});
  const std::string globs =
      checkpointed ? R"(, "activation_checkpointing": [)" + c.checkpoints + "]" : "";
  const plan::Plan plan =
      plan::parse_plan(R"({"version": 1, "units": [{"modules": ""}, {"modules": ")" + c.units +
                           "\"}]" + c.more + globs + "}",
                       "test");
  const auto sharded =
      fsdp::fully_shard(model.ptr(), plan, {.world = &world, .check_ledger = true});
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (uint64_t step = 0; step < 3; ++step) {
    for (uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
      sharded->set_requires_gradient_sync(microbatch == 1 || step == 2);
      const at::Tensor x =
          seeded({4, 5}, 100 * step + 10 * microbatch + static_cast<uint64_t>(world.rank()));
      at::mse_loss(model(x).to(at::kFloat), x).backward();
    }
    EXPECT_EQ(sharded->unsharded_bytes(), 0);
    static_cast<void>(sharded->clip_grad_norm(1.0));
    optimizer.step();
    sharded->optimizer_done();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> parameters;
  for (uint32_t p = 0; p < sharded->plan().tree.parameters.size(); ++p) {
    parameters.push_back(sharded->full_parameter(p));
  }
  return parameters;
}

TEST(CheckpointedUnitsTest, TrainBitwiseAsWithout) {
  const std::string casings = "layers.*", links = "layers.*.link";
  std::vector<Case> cases;
  for (const std::string reshard : {"null", "true", "false"}) {
    const std::string more = R"(, "reshard_after_forward": )" + reshard;
    cases.push_back({casings, R"("layers.*")", more});       // the unit itself
    cases.push_back({casings, R"("layers.*.link")", more});  // a part of it
    cases.push_back({links, R"("layers.*")", more});         // around it
    cases.push_back({links, R"("")", more});                 // around all of them
  }
  cases.push_back({links, R"("layers.1", "layers.2.link")", R"(, "views": "frozen")"});
  cases.push_back({links, R"("layers.*")", R"(, "forward_prefetch": 1)"});
  cases.push_back({links, R"("layers.*", "layers.*.link")",
                   R"(, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})"});
  cases.push_back({casings, R"("layers.*.link")", R"(, "mesh": {"shard": 1, "replicate": 2})"});
  for (const Case& c : cases) {
    test::run_ranks(2, [&](dist::World& world) {
      SCOPED_TRACE(c.units + " " + c.checkpoints + c.more);
      const std::vector<at::Tensor> plain = trained(c, false, world);
      const std::vector<at::Tensor> checkpointed = trained(c, true, world);
      ASSERT_EQ(plain.size(), checkpointed.size());
      for (size_t p = 0; p < plain.size(); ++p) {
        EXPECT_TRUE(at::equal(plain[p], checkpointed[p])) << "parameter " << p;
      }
    });
  }
}

TEST(CheckpointedUnitsTest, FailureInARecomputationEndsTheBackwardAlone) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({.encased = true});
    const plan::Plan plan = plan::parse_plan(
        R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*.link"}],
            "activation_checkpointing": ["layers.*"]})",
        "test");
    const auto sharded =
        fsdp::fully_shard(model.ptr(), plan, {.world = &world, .check_ledger = true});
    const auto gradients = [&] {
      std::vector<at::Tensor> out;
      for (const at::Tensor& shard : sharded->flat_shards()) {
        out.push_back(shard.grad().clone());
      }
      sharded->zero_grad();
      return out;
    };
    const at::Tensor x = seeded({4, 5}, static_cast<uint64_t>(world.rank()));
    model(x).sum().backward();
    const std::vector<at::Tensor> expected = gradients();
    const at::Tensor loss = model(x).sum();
    model->links[1]->fail_forward = true;
    EXPECT_THROW(loss.backward(), test::InjectedFailure);
    model->links[1]->fail_forward = false;
    EXPECT_EQ(sharded->unsharded_bytes(), 0);
    sharded->zero_grad();
    model(x).sum().backward();
    const std::vector<at::Tensor> again = gradients();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(again[i], expected[i])) << i;
    }
  });
}

TEST(CheckpointedUnitsTest, PlanThatNamesAModuleWithoutHooksChangesNothing) {
  test::run_ranks(1, [](dist::World& world) {
    Chain model = make_chain({});
    const plan::Plan plan =
        plan::parse_plan(R"({"version": 1, "activation_checkpointing": ["layers.0.up"]})", "test");
    EXPECT_THAT(test::message_of([&] {
                  static_cast<void>(fsdp::fully_shard(model.ptr(), plan, {.world = &world}));
                }),
                HasSubstr("'layers.0.up' (Linear) has no hooks"));
    EXPECT_EQ(model->links[0]->up->weight.dim(), 2);
    EXPECT_EQ(composable::registry(*model), nullptr);
  });
}

}  // namespace
}  // namespace shardlens::module
