// Unusual programs on real Gloo, with fresh and with frozen views: the numbers are those of one
// process without sharding, nothing stays unsharded, nothing leaks.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
#include <torch/optim/sgd.h>

#include "core/base/error.h"
#include "core/base/live_count.h"
#include "core/dist/world.h"
#include "core/fsdp/run/root.h"
#include "core/fsdp/run/state.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Chain;
using test::InjectedFailure;

constexpr int kRobustnessRanks = 2;

struct Setting {
  std::string reshard, views;
};
const std::vector<Setting> kSettings{{"null", "fresh"},
                                     {"true", "fresh"},
                                     {"false", "fresh"},
                                     {"null", "frozen"},
                                     {"true", "frozen"}};

plan::Plan plan_of(const Setting& setting) {
  return plan::parse_plan(
      R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "reshard_after_forward": )" +
          setting.reshard + R"(, "views": ")" + setting.views + "\"}",
      "test");
}

at::Tensor robustness_loss_of(Chain& model, int data, int rank) {
  return model(test::seeded({3, 5}, static_cast<uint64_t>(100 + data * kRobustnessRanks + rank)))
      .pow(2)
      .mean();
}

// A program computes losses with the function that it gets, and runs backward on them.
using Losses = std::function<at::Tensor(int data)>;
using Program = std::function<void(const Losses&)>;

// Gradients of the parameters of one process that has the data of all ranks.
std::vector<at::Tensor> plain_gradients(const test::ChainImpl::Shape& shape,
                                        const Program& program) {
  Chain model = test::make_chain(shape);
  for (int rank = 0; rank < kRobustnessRanks; ++rank) {
    program([&](int data) { return robustness_loss_of(model, data, rank) / kRobustnessRanks; });
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : model->parameters()) {
    gradients.push_back(p.grad());
  }
  return gradients;
}

void expect_gradients(Chain& model,
                      const ShardedModel& sharded,
                      const std::vector<at::Tensor>& expected) {
  EXPECT_EQ(sharded.unsharded_bytes(), 0);
  for (const ParameterSlice& slice : sharded.slices()) {
    const at::Tensor shown = model->parameters()[slice.parameter].grad();
    ASSERT_TRUE(shown.defined()) << "parameter " << slice.parameter;
    EXPECT_TRUE(at::allclose(
        shown,
        expected[slice.parameter].reshape({-1}).narrow(0, slice.offset, slice.values.numel()), 1e-5,
        1e-6))
        << "parameter " << slice.parameter;
  }
}

// `disturb` runs before `program` and must not change its gradients.
struct Experiment {
  test::ChainImpl::Shape shape = {};
  std::function<void(Chain&, ShardedModel&, const Losses&)> disturb = {};
  Program program = [](const Losses& loss) { loss(0).backward(); };
};

void expect_plain_gradients(const Experiment& experiment) {
  const std::vector<at::Tensor> expected = plain_gradients(experiment.shape, experiment.program);
  for (const Setting& setting : kSettings) {
    SCOPED_TRACE("reshard " + setting.reshard + ", " + setting.views + " views");
    test::run_ranks(kRobustnessRanks, [&](dist::World& world) {
      SCOPED_TRACE("reshard " + setting.reshard + ", " + setting.views + " views");
      Chain model = test::make_chain(experiment.shape);
      const auto sharded =
          fully_shard(model.ptr(), plan_of(setting), {.world = &world, .check_ledger = true});
      const Losses loss = [&](int data) { return robustness_loss_of(model, data, world.rank()); };
      for (int round = 0; round < 2; ++round) {
        if (experiment.disturb) {
          experiment.disturb(model, *sharded, loss);
        }
        experiment.program(loss);
        expect_gradients(model, *sharded, expected);
        model->zero_grad();
        sharded->optimizer_done();
      }
    });
  }
}

TEST(RobustnessTest, UnitUsedTwiceInAForward) {
  expect_plain_gradients({.shape = {.calls = {0, 1, 1, 2}}});
  expect_plain_gradients({.shape = {.calls = {0, 1, 2, 1}}});
  expect_plain_gradients({.shape = {.root_owns = false, .calls = {0, 1, 0, 2, 0}}});
}

TEST(RobustnessTest, TwoForwardsThenOneBackward) {
  expect_plain_gradients({.program = [](const Losses& loss) {
    const at::Tensor first = loss(0);
    (first + loss(1)).backward();
  }});
}

TEST(RobustnessTest, TwoForwardsThenTwoBackwards) {
  expect_plain_gradients({.program = [](const Losses& loss) {
    const at::Tensor first = loss(0), second = loss(1);
    first.backward();
    second.backward();
  }});
}

TEST(RobustnessTest, TwoBackwardsOfOneForwardAddUp) {
  expect_plain_gradients({.program = [](const Losses& loss) {
    const at::Tensor value = loss(0);
    value.backward({}, /*retain_graph=*/true);
    value.backward();
  }});
  expect_plain_gradients({.shape = {.calls = {0, 1, 2, 1}}, .program = [](const Losses& loss) {
                            const at::Tensor value = loss(0);
                            value.backward({}, /*retain_graph=*/true);
                            value.backward();
                          }});
}

TEST(RobustnessTest, SecondBackwardOfAFreedGraphSaysSoAndTheNextStepIsRight) {
  expect_plain_gradients({.disturb = [](Chain& model, ShardedModel& sharded, const Losses& loss) {
    const at::Tensor value = loss(3);
    value.backward();
    EXPECT_THROW(value.backward(), c10::Error);
    EXPECT_EQ(sharded.unsharded_bytes(), 0);
    model->zero_grad();
  }});
}

TEST(RobustnessTest, ForwardWithoutABackwardBeforeAStep) {
  expect_plain_gradients({.disturb = [](Chain&, ShardedModel&, const Losses& loss) { loss(3); }});
}

TEST(RobustnessTest, ForwardWithoutGradientsBeforeAStep) {
  expect_plain_gradients({.disturb = [](Chain&, ShardedModel&, const Losses& loss) {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(loss(3).requires_grad());
  }});
}

TEST(RobustnessTest, ForwardWithoutGradientsBetweenAForwardAndItsBackward) {
  expect_plain_gradients({.program = [](const Losses& loss) {
    const at::Tensor value = loss(0);
    {
      const at::NoGradGuard no_grad;
      loss(1);
    }
    value.backward();
  }});
}

TEST(RobustnessTest, UnitRunOnItsOwnBeforeAStep) {
  expect_plain_gradients({.disturb = [](Chain& model, ShardedModel&, const Losses&) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = test::seeded({3, 5}, 9);
    Chain plain = test::make_chain({});
    EXPECT_TRUE(at::allclose(model->links[1](x), plain->links[1](x), 1e-5, 1e-6));
  }});
}

TEST(RobustnessTest, ExceptionInForwardAtAnyLayer) {
  for (size_t layer = 0; layer < 3; ++layer) {
    SCOPED_TRACE("layer " + std::to_string(layer));
    expect_plain_gradients(
        {.disturb = [layer](Chain& model, ShardedModel& sharded, const Losses& loss) {
          model->links[layer]->fail_forward = true;
          EXPECT_THROW(loss(3), InjectedFailure);
          model->links[layer]->fail_forward = false;
          EXPECT_EQ(sharded.unsharded_bytes(), 0);  // without a call of abort()
        }});
  }
}

TEST(RobustnessTest, ExceptionInBackwardAtAnyLayer) {
  for (size_t layer = 0; layer < 3; ++layer) {
    SCOPED_TRACE("layer " + std::to_string(layer));
    expect_plain_gradients(
        {.disturb = [layer](Chain& model, ShardedModel& sharded, const Losses& loss) {
          model->links[layer]->fail_backward = true;
          const at::Tensor value = loss(3);
          EXPECT_THROW(value.backward(), InjectedFailure);
          model->links[layer]->fail_backward = false;
          EXPECT_EQ(sharded.unsharded_bytes(), 0);
          for (const at::Tensor& p : model->parameters()) {
            EXPECT_TRUE(p.is_leaf());
            EXPECT_EQ(p.dim(), 1);
          }
          model->zero_grad();  // gradients from before the failure remain, as without sharding
        }});
  }
}

// Gradients reduced before a backward failed are the parameters' gradients, as in plain autograd.
TEST(RobustnessTest, GradientsOfAnInterruptedBackwardAreThoseReducedBefore) {
  test::run_ranks(kRobustnessRanks, [](dist::World& world) {
    Chain model = test::make_chain({});
    const auto sharded = fully_shard(model.ptr(), plan_of(kSettings[0]), {.world = &world});
    model->links[0]->fail_backward = true;
    EXPECT_THROW(robustness_loss_of(model, 0, world.rank()).backward(), InjectedFailure);
    EXPECT_TRUE(model->links[2]->up->weight.grad().defined());
    EXPECT_FALSE(model->links[0]->up->weight.grad().defined());
    sharded->zero_grad();
    EXPECT_FALSE(model->links[2]->up->weight.grad().defined());
  });
}

TEST(RobustnessTest, UnitThatFailsInsideAForwardThatGoesOn) {
  expect_plain_gradients({.disturb = [](Chain& model, ShardedModel&, const Losses& loss) {
    model->links[1]->fail_forward = model->skip_failed = true;
    {
      const at::NoGradGuard no_grad;
      loss(3);
    }
    loss(3).backward();
    model->links[1]->fail_forward = model->skip_failed = false;
    model->zero_grad();
  }});
}

TEST(RobustnessTest, AbortIsHarmlessAtAnyTime) {
  expect_plain_gradients({.disturb = [](Chain&, ShardedModel& sharded, const Losses& loss) {
    sharded.abort();
    loss(3);
    sharded.abort();
    sharded.abort();
    EXPECT_EQ(sharded.unsharded_bytes(), 0);
  }});
}

TEST(RobustnessTest, StepsAfterExceptionsTrainAsOneProcessDoes) {
  const auto steps = 4;
  Chain plain = test::make_chain({});
  torch::optim::SGD plain_optimizer(plain->parameters(),
                                    torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < kRobustnessRanks; ++rank) {
      (robustness_loss_of(plain, step, rank) / kRobustnessRanks).backward();
    }
    plain_optimizer.step();
    plain_optimizer.zero_grad();
  }
  for (const Setting& setting : kSettings) {
    test::run_ranks(kRobustnessRanks, [&](dist::World& world) {
      SCOPED_TRACE("reshard " + setting.reshard + ", " + setting.views + " views");
      Chain model = test::make_chain({});
      const auto sharded =
          fully_shard(model.ptr(), plan_of(setting), {.world = &world, .check_ledger = true});
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < steps; ++step) {
        auto& link = model->links[static_cast<size_t>(step) % 3];
        (step % 2 == 0 ? link->fail_forward : link->fail_backward) = true;
        EXPECT_THROW(robustness_loss_of(model, 50 + step, world.rank()).backward(),
                     InjectedFailure);
        link->fail_forward = link->fail_backward = false;
        optimizer.zero_grad();
        robustness_loss_of(model, step, world.rank()).backward();
        optimizer.step();
        sharded->optimizer_done();
        optimizer.zero_grad();
      }
      for (uint32_t p = 0; p < plain->parameters().size(); ++p) {
        EXPECT_TRUE(at::allclose(sharded->full_parameter(p), plain->parameters()[p], 1e-4, 1e-5))
            << "parameter " << p;
      }
    });
  }
}

struct Live {
  int64_t handles = FlatParamHandle::live();
  int64_t roots = Root::live();
  int64_t views = FlatViewsBackward::live();
  int64_t requests = dist::Completion::live();
  friend bool operator==(const Live&, const Live&) = default;
};
void PrintTo(const Live& live, std::ostream* out) {
  *out << live.handles << " handles, " << live.roots << " roots, " << live.views << " views, "
       << live.requests << " requests";
}

TEST(RobustnessTest, NothingLeaks) {
  const Live before;
  for (const Setting& setting : kSettings) {
    SCOPED_TRACE("reshard " + setting.reshard + ", " + setting.views + " views");
    dist::WorldOptions options;
    options.backend = dist::BackendKind::kEmulated;
    options.world_size = kRobustnessRanks;
    auto world = dist::World::join(options);
    Chain model = test::make_chain({.calls = {0, 1, 2, 1}});
    auto sharded =
        fully_shard(model.ptr(), plan_of(setting), {.world = world.get(), .check_ledger = true});
    const auto round = [&] {
      const auto backward_that_fails = [&](bool in_forward) {
        auto& link = model->links[1];
        (in_forward ? link->fail_forward : link->fail_backward) = true;
        EXPECT_THROW(robustness_loss_of(model, 0, 0).backward(), InjectedFailure);
        link->fail_forward = link->fail_backward = false;
      };
      robustness_loss_of(model, 0, 0).backward();
      robustness_loss_of(model, 0, 0);
      {
        const at::NoGradGuard no_grad;
        robustness_loss_of(model, 0, 0);
      }
      backward_that_fails(true);
      backward_that_fails(false);
      const at::Tensor twice = robustness_loss_of(model, 0, 0);
      twice.backward({}, /*retain_graph=*/true);
      twice.backward();
      sharded->zero_grad();
    };
    round();
    const Live after_one;
    EXPECT_EQ(after_one.handles, before.handles + 4);
    EXPECT_EQ(after_one.roots, before.roots + 1);
    for (int i = 0; i < 20; ++i) {
      round();
    }
    Live after_many;
    // The communication thread may still have its last request.
    EXPECT_LE(after_many.requests, after_one.requests + 1);
    after_many.requests = after_one.requests;
    EXPECT_EQ(after_many, after_one);
    EXPECT_EQ(sharded->unsharded_bytes(), 0);
    sharded.reset();
    model = nullptr;
    world.reset();
    EXPECT_EQ(Live(), before);
  }
}

TEST(RobustnessTest, MisuseIsNamed) {
  dist::WorldOptions options;
  options.backend = dist::BackendKind::kEmulated;
  options.world_size = kRobustnessRanks;
  const auto world = dist::World::join(options);
  Chain model = test::make_chain({});
  const auto sharded = fully_shard(model.ptr(), plan_of(kSettings[0]), {.world = world.get()});
  const at::Tensor x = test::seeded({3, 5}, 1);
  const auto rejects = [](const std::string& what) {
    return testing::ThrowsMessage<Error>(testing::HasSubstr(what));
  };
  auto recursion = model->links[1]->register_pre_forward([&](auto&) { model->links[1](x); });
  EXPECT_THAT([&] { model(x); }, rejects("unit 'layers.1': its forward was called from within"));
  recursion.remove();
  recursion = model->links[1]->register_pre_forward([&](auto&) { model(x); });
  EXPECT_THAT([&] { model(x); }, rejects("unit '': its forward was called from within itself"));
  recursion.remove();
  auto step = model->links[1]->register_post_forward([&](auto&) { sharded->optimizer_done(); });
  EXPECT_THAT([&] { model(x); }, rejects("a forward or backward is running"));
  step.remove();
  const at::Tensor y = model(x).sum();
  EXPECT_THAT([&] { y.backward({}, /*retain_graph=*/true, /*create_graph=*/true); },
              rejects("gradients of gradients"));
  // After each of these errors the model is as before.
  model(x).sum().backward();
  EXPECT_EQ(sharded->unsharded_bytes(), 0);
}

}  // namespace
}  // namespace shardlens::fsdp
