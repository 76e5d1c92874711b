// Settings at run time, and parameters gathered by hand. Orders of events that settings change are
// compared in recorded_orders_test.cpp.
#include "core/fsdp/apply/sharded_unit.h"

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>

#include "core/base/error.h"
#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using schedule::Op;
using test::Chain;
using test::make_chain;
using test::seeded;
using ::testing::HasSubstr;

// Counts collectives issued since the last take(): all-gathers, reduce-scatters, all-reduces.
struct Counts : NullRecorder {
  void action(uint32_t /*seq*/, const schedule::Action& action) override { ++of[action.op]; }
  std::vector<int> take() {
    const auto seen = std::exchange(of, {});
    const auto count = [&](Op op) { return seen.contains(op) ? seen.at(op) : 0; };
    return {count(Op::kAllGather), count(Op::kReduceScatter), count(Op::kAllReduce)};
  }
  std::map<Op, int> of;
};

plan::Plan sharded_unit_plan_of(const std::string& more = "") {
  return plan::parse_plan(
      R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}])" + more + "}", "test");
}

TEST(ShardedUnitTest, UnshardGathersOneUnitUntilReshard) {
  test::run_ranks(2, [](dist::World& world) {
    Counts counts;
    Chain model = make_chain({}), whole = make_chain({});
    const auto sharded = fully_shard(model.ptr(), sharded_unit_plan_of(),
                                     {.world = &world, .recorder = &counts, .check_ledger = true});
    const ShardedUnit unit(model->links[1].ptr());
    const at::Tensor weight = model->links[1]->up->weight;
    unit.unshard();
    unit.unshard();
    EXPECT_EQ(counts.take(), (std::vector{1, 0, 0}));
    EXPECT_TRUE(at::equal(weight.detach(), whole->links[1]->up->weight.detach()));
    EXPECT_EQ(model->links[0]->up->weight.dim(), 1);  // other units stay sharded
    // The forward uses parameters that are already gathered.
    model(seeded({2, 5}, 1)).sum().backward();
    EXPECT_EQ(counts.take(), (std::vector{3 + 3, 4, 0}));
    unit.unshard();
    unit.reshard();
    unit.reshard();
    EXPECT_EQ(weight.dim(), 1);
    EXPECT_EQ(sharded->unsharded_bytes(), 0);
  });
}

TEST(ShardedUnitTest, AsynchronousUnshardIsCompleteWhenItWasWaitedFor) {
  test::run_ranks(3, [](dist::World& world) {
    Counts counts;
    Chain model = make_chain({}), whole = make_chain({});
    const auto sharded = fully_shard(model.ptr(), sharded_unit_plan_of(),
                                     {.world = &world, .recorder = &counts, .check_ledger = true});
    UnshardHandle root = ShardedUnit(model.ptr()).unshard(/*async=*/true);
    UnshardHandle link = ShardedUnit(model->links[2].ptr()).unshard(/*async=*/true);
    EXPECT_EQ(counts.take(), (std::vector{2, 0, 0}));
    link.wait();
    root.wait();
    root.wait();
    EXPECT_TRUE(
        at::equal(model->links[2]->down->weight.detach(), whole->links[2]->down->weight.detach()));
    EXPECT_TRUE(at::equal(model->in->weight.detach(), whole->in->weight.detach()));
    ShardedUnit(model.ptr()).reshard();
    ShardedUnit(model->links[2].ptr()).reshard();
    // The forward also uses an all-gather that nothing waited for.
    static_cast<void>(ShardedUnit(model->links[0].ptr()).unshard(/*async=*/true));
    model(seeded({2, 5}, 1)).sum().backward();
    EXPECT_EQ(counts.take(), (std::vector{4 + 3, 4, 0}));
    EXPECT_EQ(sharded->unsharded_bytes(), 0);
  });
}

TEST(ShardedUnitTest, UnshardedParametersAreNoPartOfAGraph) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({});
    const auto sharded = fully_shard(model.ptr(), sharded_unit_plan_of(), {.world = &world});
    model(seeded({2, 5}, 1)).sum().backward();
    const ShardedUnit unit(model->links[0].ptr());
    unit.unshard();
    EXPECT_EQ(model->links[0]->up->weight.grad_fn(), nullptr);
    unit.reshard();
  });
}

TEST(ShardedUnitTest, GradientSyncOfSomeUnits) {
  test::run_ranks(2, [](dist::World& world) {
    Counts counts;
    Chain model = make_chain({}), all = make_chain({});
    const auto sharded = fully_shard(model.ptr(), sharded_unit_plan_of(),
                                     {.world = &world, .recorder = &counts, .check_ledger = true});
    const auto reference = fully_shard(all.ptr(), sharded_unit_plan_of(), {.world = &world});
    const auto rank = static_cast<uint64_t>(world.rank());
    // M = 2 microbatches, two of three blocks without sync in the first: 2 + 4 reduce-scatters.
    for (const bool last : {false, true}) {
      for (const size_t i : {0U, 1U}) {
        ShardedUnit(model->links[i].ptr()).set_requires_gradient_sync(last);
      }
      const at::Tensor x = seeded({4, 5}, 2 * rank + (last ? 1 : 0));
      model(x).sum().backward();
      all(x).sum().backward();
    }
    EXPECT_EQ(counts.take()[1], 2 + 4);
    for (size_t i = 0; i < sharded->flat_shards().size(); ++i) {
      EXPECT_TRUE(at::allclose(sharded->flat_shards()[i].grad(), reference->flat_shards()[i].grad(),
                               1e-5, 1e-6));
    }
  });
}

TEST(ShardedUnitTest, GradientDivideFactorOfOneUnit) {
  test::run_ranks(2, [](dist::World& world) {
    Chain model = make_chain({});
    const auto sharded = fully_shard(model.ptr(), sharded_unit_plan_of(), {.world = &world});
    const auto gradients = [&] {
      model(seeded({2, 5}, static_cast<uint64_t>(world.rank()))).sum().backward();
      std::vector<at::Tensor> grads;
      for (const at::Tensor& shard : sharded->flat_shards()) {
        grads.push_back(shard.grad().clone());
      }
      sharded->zero_grad();
      return grads;
    };
    const std::vector<at::Tensor> mean = gradients();
    const ShardedUnit unit(model->links[1].ptr());
    unit.set_gradient_divide_factor(8);  // a quarter of the mean over two ranks
    const std::vector<at::Tensor> divided = gradients();
    for (size_t i = 0; i < mean.size(); ++i) {
      EXPECT_TRUE(at::allclose(divided[i], i == 2 ? mean[i] / 4 : mean[i], 1e-6, 1e-7)) << i;
    }
    for (const double factor : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
      EXPECT_THAT(test::message_of([&] { unit.set_gradient_divide_factor(factor); }),
                  HasSubstr("expected a finite number > 0"));
    }
  });
}

// Only a Linear: its backward does not need the weight if its input needs no gradient.
struct EntryImpl : torch::nn::Module {
  EntryImpl() : linear(register_module("linear", torch::nn::Linear(5, 5))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  torch::nn::Linear linear;
};
SHARDLENS_MODULE(Entry);
struct EnteredImpl : torch::nn::Module {
  EnteredImpl()
      : entry(register_module("entry", Entry())), link(register_module("link", test::Link(5))) {}
  at::Tensor forward(const at::Tensor& x) { return link(entry(x)); }
  Entry entry;
  test::Link link;
};
SHARDLENS_MODULE(Entered);

TEST(ShardedUnitTest, UnshardInBackwardOffSavesAnAllGather) {
  test::run_ranks(2, [](dist::World& world) {
    Counts counts;
    Entered model;
    const plan::Plan plan = plan::parse_plan(
        R"({"version": 1, "units": [{"modules": ""}, {"modules": "entry"}, {"modules": "link"}]})",
        "test");
    const auto sharded = fully_shard(model.ptr(), plan,
                                     {.world = &world, .recorder = &counts, .check_ledger = true});
    const auto gradient = [&] {
      model(seeded({2, 5}, 1)).sum().backward();
      const at::Tensor grad = sharded->flat_shards()[0].grad().clone();
      sharded->zero_grad();
      return grad;
    };
    const at::Tensor expected = gradient();
    EXPECT_EQ(counts.take(), (std::vector{2 + 2, 2, 0}));
    const ShardedUnit entry(model->entry.ptr());
    entry.set_unshard_in_backward(false);
    EXPECT_TRUE(at::equal(gradient(), expected));
    EXPECT_EQ(counts.take(), (std::vector{2 + 1, 2, 0}));
    entry.set_unshard_in_backward(true);
    EXPECT_TRUE(at::equal(gradient(), expected));
    EXPECT_EQ(counts.take(), (std::vector{2 + 2, 2, 0}));
  });
}

TEST(ShardedUnitTest, MisuseIsNamed) {
  test::run_ranks(1, [](dist::World& world) {
    Chain model = make_chain({}), other = make_chain({});
    const auto sharded = fully_shard(model.ptr(), sharded_unit_plan_of(), {.world = &world});
    const auto elsewhere = fully_shard(other.ptr(), sharded_unit_plan_of(), {.world = &world});
    EXPECT_THAT(test::message_of([&] { ShardedUnit(model->in.ptr()); }),
                HasSubstr("expected a module that fully_shard was applied to, but got"));
    EXPECT_THAT(test::message_of([&] { ShardedUnit(nullptr); }), HasSubstr("but got none"));
    const ShardedUnit unit(model->links[0].ptr());
    EXPECT_THAT(test::message_of([&] { unit.set_modules_to_forward_prefetch({model->in.ptr()}); }),
                HasSubstr("expected a module that fully_shard was applied to, but got"));
    EXPECT_THAT(
        test::message_of([&] { unit.set_modules_to_backward_prefetch({other->links[0].ptr()}); }),
        HasSubstr("below another root"));
    const ShardedUnit gone = [&] {
      Chain brief = make_chain({});
      const auto handle = fully_shard(brief.ptr(), sharded_unit_plan_of(), {.world = &world});
      return ShardedUnit(brief->links[0].ptr());
    }();
    EXPECT_THAT(test::message_of([&] { static_cast<void>(gone.unshard()); }),
                HasSubstr("was destroyed"));
    Chain lazy = make_chain({});
    fully_shard_unit({lazy->links[0].ptr()}, sharded_unit_plan_of(), {.world = &world});
    EXPECT_THAT(test::message_of([&] { ShardedUnit(lazy->links[0].ptr()).reshard(); }),
                HasSubstr("has no root yet"));
  });
}

}  // namespace
}  // namespace shardlens::fsdp
