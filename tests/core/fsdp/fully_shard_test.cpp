#include "core/fsdp/apply/fully_shard.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "core/base/error.h"
#include "core/fsdp/apply/traversal.h"
#include "core/fsdp/run/state.h"
#include "tests/core/fsdp/mlp.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Mlp;
using test::mlp_plan;

constexpr int64_t kWidth = 5;
constexpr int64_t kBlocks = 3;
constexpr int64_t kRows = 4;  // per rank and microbatch

Mlp make_model() {
  return test::make_mlp(kWidth, kBlocks);
}

at::Tensor rows_of(int step, int part) {
  return test::seeded({kRows, kWidth}, static_cast<uint64_t>(1000 + step * 100 + part));
}

at::Tensor loss_of(Mlp& model, const at::Tensor& x) {
  const at::Tensor y = model(x);
  return at::mse_loss(y, x.narrow(1, 0, 2));
}

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
};

// Results of one process that has every rank's rows: the reference for every strategy.
Trained train_plain(int world_size, int steps, int microbatches, double clip) {
  Mlp model = make_model();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  Trained result;
  for (int step = 0; step < steps; ++step) {
    double total = 0;
    for (int m = 0; m < microbatches; ++m) {
      for (int r = 0; r < world_size; ++r) {
        const at::Tensor loss =
            loss_of(model, rows_of(step, m * world_size + r)) / (world_size * microbatches);
        loss.backward();
        total += loss.item<double>();
      }
    }
    torch::nn::utils::clip_grad_norm_(model->parameters(), clip);
    optimizer.step();
    optimizer.zero_grad();
    result.losses.push_back(total);
  }
  for (const at::Tensor& p : model->parameters()) {
    result.parameters.push_back(p.detach().clone());
  }
  return result;
}

struct FullyShardCase {
  int world_size;
  std::string reshard;
  bool no_shard = false;
  int microbatches = 1;
  bool sync_every = true;
  double clip = 1e9;
};

void expect_equals_plain(const FullyShardCase& c) {
  SCOPED_TRACE("W " + std::to_string(c.world_size) + ", reshard " + c.reshard +
               (c.no_shard ? ", no_shard" : "") + ", microbatches " +
               std::to_string(c.microbatches) + (c.sync_every ? "" : " without sync"));
  const int steps = 4;
  const Trained plain = train_plain(c.world_size, steps, c.microbatches, c.clip);
  test::run_ranks(c.world_size, [&](dist::World& world) {
    SCOPED_TRACE(c.reshard + " " + std::to_string(c.no_shard) + " " + std::to_string(c.sync_every));
    Mlp model = make_model();
    const plan::Plan plan =
        mlp_plan(c.reshard, c.no_shard ? R"(, "mesh": {"shard": 1, "replicate": )" +
                                             std::to_string(c.world_size) + "}"
                                       : "");
    const auto sharded = fully_shard(model.ptr(), plan, {.world = &world, .check_ledger = true});
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < steps; ++step) {
      double mine = 0;
      for (int m = 0; m < c.microbatches; ++m) {
        sharded->set_requires_gradient_sync(c.sync_every || m + 1 == c.microbatches);
        const at::Tensor loss =
            loss_of(model, rows_of(step, m * c.world_size + world.rank())) / c.microbatches;
        loss.backward();
        mine += loss.item<double>();
      }
      static_cast<void>(sharded->clip_grad_norm(c.clip));
      optimizer.step();
      sharded->optimizer_done();
      optimizer.zero_grad();
      const at::Tensor total = at::full({1}, mine, at::kDouble);
      world.world().wait(world.world().all_reduce(total, dist::ReduceOp::kSum, {}));
      EXPECT_NEAR(total.item<double>() / c.world_size, plain.losses[static_cast<size_t>(step)],
                  1e-5);
    }
    for (uint32_t p = 0; p < plain.parameters.size(); ++p) {
      const at::Tensor whole = sharded->full_parameter(p);
      EXPECT_EQ(whole.sizes(), plain.parameters[p].sizes());
      EXPECT_TRUE(at::allclose(whole, plain.parameters[p], 1e-4, 1e-5)) << "parameter " << p;
    }
  });
}

TEST(FullyShardTest, FullShardTrainsAsOneProcessDoes) {
  for (const int world_size : {1, 2, 3}) {
    for (const char* reshard : {"null", "true"}) {
      expect_equals_plain({world_size, reshard});
    }
  }
}

TEST(FullyShardTest, ShardGradOpTrainsAsOneProcessDoes) {
  for (const int world_size : {1, 2, 3}) {
    expect_equals_plain({world_size, "false"});
  }
}

TEST(FullyShardTest, NoShardTrainsAsOneProcessDoes) {
  expect_equals_plain({2, "null", true});
}

TEST(FullyShardTest, AccumulationWithAndWithoutSyncIsTheSumOfMicrobatches) {
  for (const bool sync : {true, false}) {
    expect_equals_plain({2, "null", false, 3, sync});
    expect_equals_plain({2, "false", false, 3, sync});
    expect_equals_plain({2, "null", true, 3, sync});
  }
}

TEST(FullyShardTest, ClippingUsesTheGlobalNorm) {
  expect_equals_plain({3, "null", false, 1, true, 0.05});
}

TEST(FullyShardTest, ExplicitPrefetchChangesNoNumber) {
  const Trained plain = train_plain(2, 1, 1, 1e9);
  for (const char* more :
       {R"(, "forward_prefetch": 1)", R"(, "forward_prefetch": 2, "backward_prefetch": "none")",
        R"(, "backward_prefetch": {"layers.2": ["layers.1", "layers.0"]})"}) {
    test::run_ranks(2, [&](dist::World& world) {
      Mlp model = make_model();
      const auto sharded =
          fully_shard(model.ptr(), mlp_plan("null", more), {.world = &world, .check_ledger = true});
      const at::Tensor loss = loss_of(model, rows_of(0, world.rank()));
      loss.backward();
      const at::Tensor total = loss.detach().to(at::kDouble).reshape({1});
      world.world().wait(world.world().all_reduce(total, dist::ReduceOp::kAverage, {}));
      EXPECT_NEAR(total.item<double>(), plain.losses[0], 1e-6);
      EXPECT_EQ(sharded->unsharded_bytes(), 0);
    });
  }
}

TEST(FullyShardTest, UnshardedStorageExistsOnlyWhileItIsNeeded) {
  test::run_ranks(2, [](dist::World& world) {
    Mlp model = make_model();
    const auto sharded = fully_shard(model.ptr(), mlp_plan("null"), {.world = &world});
    EXPECT_EQ(sharded->unsharded_bytes(), 0);
    int64_t inside = 0;
    const auto handle =
        model->order[1]->register_post_forward([&](auto&) { inside = sharded->unsharded_bytes(); });
    const at::Tensor loss = loss_of(model, rows_of(0, world.rank()));
    const auto states = fsdp_states(model.ptr());
    ASSERT_EQ(states.size(), 4U);
    // After forward only the root stays unsharded: in 5·5+5, out 2·5+2, each start on a 16-byte
    // boundary: 25→28, 5→8, 10→12, 2; the sum is a multiple of 2 ranks.
    EXPECT_EQ(states[0]->handle()->layout().padded_numel(), 28 + 8 + 12 + 2);
    EXPECT_EQ(sharded->unsharded_bytes(), states[0]->handle()->layout().padded_numel() * 4);
    // The post hook registered by the user runs after the unit's own: the block is resharded
    // already.
    EXPECT_EQ(inside, sharded->unsharded_bytes());
    loss.backward();
    EXPECT_EQ(sharded->unsharded_bytes(), 0);
    for (const auto& state : states) {
      EXPECT_EQ(state->handle()->storage().gather_output().storage().nbytes(), 0U);
    }
  });
}

TEST(FullyShardTest, EachRankHoldsExactlyItsShard) {
  for (const int world_size : {2, 3}) {
    test::run_ranks(world_size, [&](dist::World& world) {
      Mlp model = make_model();
      const Mlp whole = make_model();
      const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = &world});
      std::map<uint32_t, int64_t> held;
      for (const ParameterSlice& slice : sharded->slices()) {
        const at::Tensor original = whole->parameters()[slice.parameter].detach().reshape({-1});
        EXPECT_TRUE(at::equal(slice.values.detach(),
                              original.narrow(0, slice.offset, slice.values.numel())));
        held[slice.parameter] += slice.values.numel();
      }
      const auto parameters = model->parameters();
      for (uint32_t p = 0; p < parameters.size(); ++p) {
        EXPECT_EQ(parameters[p].dim(), 1);
        EXPECT_TRUE(parameters[p].is_leaf());
        EXPECT_EQ(parameters[p].numel(), held[p]);
      }
      size_t bytes = 0;
      int64_t expected = 0;
      for (const auto& state : fsdp_states(model.ptr())) {
        bytes += state->handle()->shard().values().storage().nbytes();
        expected += state->handle()->layout().shard_numel() * 4;
      }
      EXPECT_EQ(static_cast<int64_t>(bytes), expected);
    });
  }
}

TEST(FullyShardTest, BackwardReducesEachUnitBeforeTheNextUnitsBackward) {
  struct Hooks : NullRecorder {
    uint32_t hook(const HookEvent& event) override {
      if (event.hook == Hook::kPreBackward || event.hook == Hook::kGradsReady) {
        seen += (event.hook == Hook::kPreBackward ? "B" : "P") + std::to_string(event.unit) + " ";
      }
      return 0;
    }
    void action(uint32_t /*seq*/, const schedule::Action& action) override {
      seen +=
          action.op == schedule::Op::kReduceScatter ? "RS" + std::to_string(action.unit) + " " : "";
    }
    std::string seen;
  };
  test::run_ranks(2, [](dist::World& world) {
    Hooks recorder;
    Mlp model = make_model();
    const auto sharded =
        fully_shard(model.ptr(), mlp_plan(), {.world = &world, .recorder = &recorder});
    loss_of(model, rows_of(0, world.rank())).backward();
    // Units in pre-order: 0 the root, 1..3 the blocks. PyTorch, three blocks: B2 P2 RS2 B1 P1 RS1
    // B0 P0 RS0, the root last.
    EXPECT_EQ(recorder.seen, "B0 B3 P3 RS3 B2 P2 RS2 B1 P1 RS1 P0 RS0 ");
  });
}

TEST(FullyShardTest, MixedPrecisionKeepsMasterWeightsAndReducesInFp32) {
  test::run_ranks(2, [](dist::World& world) {
    Mlp model = make_model();
    const auto sharded = fully_shard(
        model.ptr(),
        mlp_plan("null", R"(, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})"),
        {.world = &world});
    const at::Tensor y = model(rows_of(0, world.rank()));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.to(at::kFloat).pow(2).mean().backward();
    for (const at::Tensor& shard : sharded->flat_shards()) {
      EXPECT_EQ(shard.scalar_type(), at::kFloat);
      EXPECT_EQ(shard.grad().scalar_type(), at::kFloat);
    }
    Mlp plain = make_model();
    at::Tensor total;
    for (int r = 0; r < 2; ++r) {
      const at::Tensor loss = plain(rows_of(0, r)).pow(2).mean() / 2;
      loss.backward();
    }
    for (uint32_t p = 0; p < plain->parameters().size(); ++p) {
      for (const ParameterSlice& slice : sharded->slices()) {
        if (slice.parameter == p) {
          const at::Tensor expected = plain->parameters()[p].grad().reshape({-1}).narrow(
              0, slice.offset, slice.values.numel());
          EXPECT_TRUE(at::allclose(model->parameters()[p].grad(), expected, 5e-2, 2e-2)) << p;
        }
      }
    }
  });
}

TEST(FullyShardTest, MixedPrecisionWithoutSyncAccumulatesInReduceDtype) {
  test::run_ranks(2, [](dist::World& world) {
    Mlp model = make_model();
    const auto sharded = fully_shard(
        model.ptr(),
        mlp_plan("null", R"(, "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"})"),
        {.world = &world, .check_ledger = true});
    const int microbatches = 300;
    for (int m = 0; m < microbatches; ++m) {
      sharded->set_requires_gradient_sync(m + 1 == microbatches);
      model(rows_of(0, world.rank())).sum().backward();
    }
    // d sum / d out.bias is the number of rows, each time. A sum in bf16 would stop at 1024.
    const at::Tensor bias = model->out->bias;
    for (int64_t i = 0; i < bias.numel(); ++i) {
      EXPECT_EQ(bias.grad()[i].item<float>(), microbatches * kRows);
    }
  });
}

TEST(FullyShardTest, EvaluationForwardBetweenStepsLeavesTrainingUnchanged) {
  test::run_ranks(2, [](dist::World& world) {
    Mlp model = make_model();
    const auto sharded =
        fully_shard(model.ptr(), mlp_plan(), {.world = &world, .check_ledger = true});
    loss_of(model, rows_of(0, world.rank())).backward();
    const at::Tensor first = sharded->flat_shards()[1].grad().clone();
    sharded->zero_grad();
    sharded->optimizer_done();
    {
      const at::NoGradGuard no_grad;
      const at::Tensor y = model(rows_of(7, 0));
      EXPECT_FALSE(y.requires_grad());
    }
    loss_of(model, rows_of(0, world.rank())).backward();
    EXPECT_TRUE(at::equal(first, sharded->flat_shards()[1].grad()));
  });
}

TEST(FullyShardTest, ExceptionInForwardLeavesAModelThatTrains) {
  test::run_ranks(2, [](dist::World& world) {
    Mlp model = make_model();
    const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = &world});
    loss_of(model, rows_of(0, world.rank())).backward();
    const at::Tensor expected = sharded->flat_shards()[2].grad().clone();
    sharded->zero_grad();
    sharded->optimizer_done();
    auto fail = model->order[1]->register_post_forward(
        [](auto&) { throw std::runtime_error("user error"); });
    EXPECT_THROW(loss_of(model, rows_of(0, world.rank())), std::runtime_error);
    fail.remove();
    sharded->abort();
    EXPECT_EQ(sharded->unsharded_bytes(), 0);
    loss_of(model, rows_of(0, world.rank())).backward();
    EXPECT_TRUE(at::equal(expected, sharded->flat_shards()[2].grad()));
  });
}

TEST(FullyShardTest, MistakesAreNamedBeforeTheModelChanges) {
  dist::WorldOptions single;
  const auto world = dist::World::join(single);
  const Options options{.world = world.get()};
  Mlp model = make_model();
  const auto plan = [](const char* units) {
    return plan::parse_plan(std::string(R"({"version": 1, "units": )") + units + "}", "test");
  };
  EXPECT_THAT(
      [&] {
        (void)fully_shard(model.ptr(), plan(R"([{"modules": ""}, {"modules": "layers.1.up"}])"),
                          options);
      },
      testing::ThrowsMessage<UsageError>(testing::AllOf(testing::HasSubstr("module 'layers.1.up'"),
                                                        testing::HasSubstr("SHARDLENS_MODULE"))));
  EXPECT_EQ(model->parameters()[0].dim(), 2);
  EXPECT_EQ(composable::module_state(*model), nullptr);
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), options);
  EXPECT_THAT([&] { (void)fully_shard(model.ptr(), mlp_plan(), options); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("fully_shard")));
  EXPECT_THAT([&] { (void)sharded->clip_grad_norm(1.0, -1.0); },
              testing::ThrowsMessage<UsageError>(testing::HasSubstr("norm type is -1")));
}

TEST(FullyShardTest, ParameterUsedWithoutItsUnitsForwardIsNamed) {
  dist::WorldOptions single;
  const auto world = dist::World::join(single);
  Mlp model = make_model();
  const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = world.get()});
  // A slice: block 0 runs later, but not around this use.
  const at::Tensor hidden = model->order[0]->down->bias;
  const at::Tensor loss = loss_of(model, rows_of(0, 0)) + model->order[2]->down->bias.sum();
  EXPECT_THAT([&] { loss.backward(); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("layers.2.down.bias")));
}

TEST(FullyShardTest, ForcedCollectivesOverOneRankChangeNoNumber) {
  const Trained plain = train_plain(1, 1, 1, 1e9);
  struct Count : NullRecorder {
    void collective(const CollectiveRecord& record) override { ++seen[record.kind]; }
    std::map<CollectiveKind, int> seen;
  };
  Count count;
  dist::WorldOptions single;
  single.recorder = &count;
  auto world = dist::World::join(single);
  Mlp model = make_model();
  const auto sharded =
      fully_shard(model.ptr(), mlp_plan("true"),
                  {.world = world.get(), .check_ledger = true, .force_collectives = true});
  const at::Tensor loss = loss_of(model, rows_of(0, 0));
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), plain.losses[0], 1e-6);
  world.reset();  // joins the communication thread
  EXPECT_EQ(count.seen[CollectiveKind::kAllGather],
            2 * (kBlocks + 1));  // forward and backward, root included
  EXPECT_EQ(count.seen[CollectiveKind::kReduceScatter], kBlocks + 1);
}

TEST(FullyShardTest, TwoHundredStepsGrowNothing) {
  test::run_ranks(2, [](dist::World& world) {
    Mlp model = make_model();
    const auto sharded = fully_shard(model.ptr(), mlp_plan(), {.world = &world});
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1e-3));
    // Ranks are threads of one process: without the lock, each would count the file that the other
    // one has open to read /proc.
    static std::mutex one_at_a_time;
    const auto open_files = [] {
      const std::lock_guard lock(one_at_a_time);
      return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                           std::filesystem::directory_iterator());
    };
    const auto resident_kb = [] {
      const std::lock_guard lock(one_at_a_time);
      std::ifstream status("/proc/self/status");
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmRSS:")) {
          return std::stol(line.substr(6));
        }
      }
      return 0L;
    };
    long files = 0;
    long memory = 0;
    for (int step = 0; step < 250; ++step) {
      if (step == 50) {
        files = open_files();
        memory = resident_kb();
      }
      loss_of(model, rows_of(0, world.rank())).backward();
      optimizer.step();
      sharded->optimizer_done();
      optimizer.zero_grad();
    }
    // On a busy machine a rank that stalls informs the others through a file, which is then open.
    for (int i = 0; i < 300 && open_files() > files; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_LE(open_files(), files);
    EXPECT_LE(resident_kb() - memory, 2048);
    EXPECT_EQ(sharded->unsharded_bytes(), 0);
  });
}

}  // namespace
}  // namespace shardlens::fsdp
