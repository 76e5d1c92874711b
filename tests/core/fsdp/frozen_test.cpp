// Frozen parameters and units; shards whose storage is allocated later.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <torch/optim/adamw.h>

#include "core/base/error.h"
#include "core/base/recorder.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/schedule/action.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Chain;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 2;
constexpr int kSteps = 3;

// Every parameter whose name contains one of `parts`.
void freeze(Chain& model, const std::vector<std::string>& parts) {
  for (auto& each : model->named_parameters()) {
    for (const std::string& part : parts) {
      if (each.key().find(part) != std::string::npos) {
        each.value().set_requires_grad(false);
      }
    }
  }
}

at::Tensor loss_of(Chain& model, int step, int rank) {
  const auto seed = static_cast<uint64_t>(100 + step * kRanks + rank);
  return model(test::seeded({3, 5}, seed)).pow(2).mean();
}

torch::optim::AdamWOptions options() {
  return torch::optim::AdamWOptions(1e-2).weight_decay(0.1);  // decay would move frozen ones
}

// Trains in one process that has the data of all ranks.
std::vector<at::Tensor> train_plain(const std::vector<std::string>& frozen,
                                    const test::ChainImpl::Shape& shape = {}) {
  Chain model = test::make_chain(shape);
  freeze(model, frozen);
  torch::optim::AdamW optimizer(model->parameters(), options());
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      (loss_of(model, step, rank) / kRanks).backward();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return model->parameters();
}

void expect_plain_training(const std::vector<std::string>& frozen,
                           const std::string& plan,
                           const test::ChainImpl::Shape& shape = {}) {
  const std::vector<at::Tensor> wanted = train_plain(frozen, shape);
  for (const bool shards : {false, true}) {  // the optimizer steps on parameters, or on shards
    test::run_ranks(kRanks, [&](dist::World& world) {
      SCOPED_TRACE(plan);
      Chain model = test::make_chain(shape);
      freeze(model, frozen);
      const auto sharded = fully_shard(model.ptr(), plan::parse_plan(plan, "test"),
                                       {.world = &world, .check_ledger = true});
      const auto flat = sharded->flat_shards();
      torch::optim::AdamW optimizer(
          shards ? std::vector<at::Tensor>(flat.begin(), flat.end()) : model->parameters(),
          options());
      for (int step = 0; step < kSteps; ++step) {
        loss_of(model, step, world.rank()).backward();
        EXPECT_EQ(sharded->unsharded_bytes(), 0);
        for (const auto& each : model->named_parameters()) {
          EXPECT_EQ(each.value().requires_grad(), each.value().grad().defined()) << each.key();
        }
        optimizer.step();
        sharded->optimizer_done();
        sharded->zero_grad();
      }
      for (uint32_t i = 0; i < wanted.size(); ++i) {
        EXPECT_TRUE(at::allclose(sharded->full_parameter(i), wanted[i], 1e-4, 1e-6)) << i;
      }
    });
  }
}

constexpr const char* kPlans[] = {
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}]})",
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "reshard_after_forward": false})",
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "views": "frozen"})",
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "layout": "per_parameter"})",
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], "dialect": "fsdp1"})"};

TEST(FrozenTest, ParametersOfAUnitStayWhileTheOthersTrain) {
  for (const char* plan : kPlans) {
    expect_plain_training({"bias"}, plan);
    expect_plain_training({"layers.1.up", "in.weight"}, plan);
  }
}

// Its parameters are needed until the backward of the first use, which comes last.
TEST(FrozenTest, AFrozenUnitIsUsedTwice) {
  for (const char* plan : kPlans) {
    expect_plain_training({"layers.1"}, plan, {.calls = {0, 1, 1, 2, 1}});
  }
}

TEST(FrozenTest, WholeUnitsStayWhereverTheyAre) {
  for (const char* plan : kPlans) {
    expect_plain_training({"layers.0"}, plan);
    expect_plain_training({"layers.1", "layers.2"}, plan);
    expect_plain_training({"in.", "layers.0"}, plan);  // nothing before layers.1 has a gradient
  }
}

TEST(FrozenTest, AUnitWithoutGradientsIsNotReduced) {
  struct Count : NullRecorder {
    void action(uint32_t /*seq*/, const schedule::Action& action) override {
      ++seen[{action.op, action.unit}];
    }
    std::map<std::pair<schedule::Op, UnitId>, int> seen;
  };
  test::run_ranks(kRanks, [](dist::World& world) {
    Count count;
    Chain model = test::make_chain({});
    freeze(model, {"layers.1"});
    const auto sharded = fully_shard(model.ptr(), plan::parse_plan(kPlans[0], "test"),
                                     {.world = &world, .recorder = &count, .check_ledger = true});
    loss_of(model, 0, world.rank()).backward();
    EXPECT_EQ((count.seen[{schedule::Op::kAllGather, 2}]), 2);  // in forward and in backward
    EXPECT_EQ((count.seen[{schedule::Op::kReduceScatter, 2}]), 0);
    EXPECT_EQ((count.seen[{schedule::Op::kReduceScatter, 1}]), 1);
  });
}

TEST(FrozenTest, FreezingAfterShardingIsNamed) {
  const auto world = dist::World::join({});
  Chain model = test::make_chain({});
  const auto sharded =
      fully_shard(model.ptr(), plan::parse_plan(kPlans[0], "test"), {.world = world.get()});
  loss_of(model, 0, 0).backward();
  model->links[1]->up->weight.set_requires_grad(false);
  EXPECT_THAT(test::message_of([&] { (void)loss_of(model, 0, 0); }),
              AllOf(HasSubstr("'layers.1.up.weight'"), HasSubstr("after it was sharded")));
  model->links[1]->up->weight.set_requires_grad(true);
  loss_of(model, 0, 0).backward();

  Chain by_hand = test::make_chain({});
  const plan::Plan settings = plan::parse_plan(R"({"version": 1})", "test");
  fully_shard_unit({by_hand->links[0].ptr()}, settings, {.world = world.get()});
  by_hand->links[0]->up->bias.set_requires_grad(false);
  fully_shard_unit({by_hand.ptr()}, settings, {.world = world.get()});
  EXPECT_THAT(test::message_of([&] { (void)loss_of(by_hand, 0, 0); }),
              AllOf(HasSubstr("'layers.0.up.bias'"), HasSubstr("was not frozen when the unit")));
}

// With the plan's key, for a whole model and for units that are applied one by one.
TEST(FrozenTest, PlansFreeze) {
  const std::vector<at::Tensor> wanted = train_plain({"layers.1.up", "in.weight"});
  for (const bool by_hand : {false, true}) {
    test::run_ranks(kRanks, [&](dist::World& world) {
      Chain model = test::make_chain({});
      const Options sharding{.world = &world, .check_ledger = true};
      std::shared_ptr<ShardedModel> sharded;
      if (by_hand) {
        fully_shard_unit(
            {model->links[1].ptr()},
            plan::parse_plan(R"({"version": 1, "frozen_parameters": ["up.*"]})", "test"), sharding);
        fully_shard_unit(
            {model.ptr()},
            plan::parse_plan(R"({"version": 1, "frozen_parameters": ["in.weight"]})", "test"),
            sharding);
        sharded = lazy_init(model.ptr());
      } else {
        sharded = fully_shard(
            model.ptr(),
            plan::parse_plan(
                R"({"version": 1, "frozen_parameters": ["layers.1.up.**", "in.weight"]})", "test"),
            sharding);
      }
      EXPECT_FALSE(model->in->weight.requires_grad());
      torch::optim::AdamW optimizer(model->parameters(), options());
      for (int step = 0; step < kSteps; ++step) {
        loss_of(model, step, world.rank()).backward();
        optimizer.step();
        sharded->optimizer_done();
        sharded->zero_grad();
      }
      for (uint32_t i = 0; i < wanted.size(); ++i) {
        EXPECT_TRUE(at::allclose(sharded->full_parameter(i), wanted[i], 1e-4, 1e-6)) << i;
      }
    });
  }
}

void train(Chain& model, ShardedModel& sharded, int rank) {
  torch::optim::AdamW optimizer(model->parameters(), options());
  for (int step = 0; step < kSteps; ++step) {
    loss_of(model, step, rank).backward();
    optimizer.step();
    sharded.optimizer_done();
    sharded.zero_grad();
  }
}

// Sharded while parameters have no memory, as on PyTorch's meta device; then trained to the same
// bits as a model that had its values from the beginning.
TEST(DeferredTest, ShardsGetTheirStorageWhenAskedForIt) {
  for (const char* plan : kPlans) {
    SCOPED_TRACE(plan);
    test::run_ranks(kRanks, [&](dist::World& world) {
      const auto shard = [&](Chain& model, bool deferred) {
        return fully_shard(model.ptr(), plan::parse_plan(plan, "test"),
                           {.world = &world, .check_ledger = true, .deferred = deferred});
      };
      Chain values = test::make_chain({});
      Chain eager = test::make_chain({});
      const auto eagerly = shard(eager, false);
      train(eager, *eagerly, world.rank());

      Chain model = test::make_chain({});
      for (at::Tensor& parameter : model->parameters()) {  // sizes, and no memory
        at::Tensor none = at::empty({0});
        none.unsafeGetTensorImpl()->set_sizes_contiguous(parameter.sizes());
        parameter.set_data(none);
      }
      const auto sharded = shard(model, true);
      for (const at::Tensor& each : sharded->flat_shards()) {
        EXPECT_GT(each.numel(), 0);
        EXPECT_EQ(each.storage().nbytes(), 0U);
      }
      EXPECT_THAT(test::message_of([&] { (void)loss_of(model, 0, 0); }),
                  AllOf(HasSubstr("should be materialized before they are used"),
                        HasSubstr("in.weight, in.bias"), HasSubstr("layers.2.down.bias")));
      EXPECT_THAT(test::message_of([&] { (void)sharded->full_parameter(0); }),
                  HasSubstr("materialized"));
      sharded->materialize();
      for (const ParameterSlice& slice : sharded->slices()) {
        at::Tensor to = slice.values;
        to.copy_(values->parameters()[slice.parameter].detach().reshape({-1}).narrow(
            0, slice.offset, to.numel()));
      }
      train(model, *sharded, world.rank());
      for (uint32_t i = 0; i < values->parameters().size(); ++i) {
        EXPECT_TRUE(at::equal(sharded->full_parameter(i), eagerly->full_parameter(i))) << i;
      }
    });
  }
}

TEST(DeferredTest, ParametersWithValuesKeepThem) {
  const auto world = dist::World::join({});
  Chain model = test::make_chain({});
  const at::Tensor before = model->in->weight.detach().clone();
  const auto sharded = fully_shard(model.ptr(), plan::parse_plan(kPlans[0], "test"),
                                   {.world = world.get(), .deferred = true});
  sharded->materialize();
  EXPECT_TRUE(at::equal(sharded->full_parameter(0), before));
}

}  // namespace
}  // namespace shardlens::fsdp
