// Bytes that the engine has allocated, phase by phase, compared with counts of the buffers that
// must be alive: some formulas are PyTorch's own bounds (test_fully_shard_memory), the others are
// derived below.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "core/train/optimizer.h"
#include "tests/core/fsdp/chain.h"
#include "tests/engine/counted_memory.h"

namespace shardlens {
namespace {

// Units of the model: three equal blocks, and a root.
struct Sizes {
  double block = 0, root = 0;                                          // B, X: unsharded bytes
  [[nodiscard]] double unsharded() const { return 3 * block + root; }  // U
  [[nodiscard]] double shard() const { return unsharded() / 2; }       // S, of two ranks
};

struct Peaks {
  double initial = 0;  // of fully_shard, beyond the model that it is given
  double sharded = 0, forward = 0, between = 0, backward = 0, after = 0, optimizer = 0, end = 0;
  double in_flight_forward = 0, in_flight_backward = 0;  // unsharded parameters only
};

struct Measured {
  Sizes sizes;
  Peaks peaks;
};

std::unique_ptr<dist::World> emulated_world() {
  dist::WorldOptions options;
  options.backend = dist::BackendKind::kEmulated;
  options.world_size = 2;
  return dist::World::join(options);
}

Sizes sizes_of(const fsdp::ShardedModel& sharded) {
  const auto bytes = [&](UnitId unit) {
    return sharded.plan().units[unit].parameters.empty()
               ? 0.0
               : 4.0 * static_cast<double>(sharded.plan().layout(unit).padded_numel());
  };
  return {bytes(1), bytes(0)};
}

Measured measure(const std::string& plan, bool root_owns) {
  test::CountingAllocator& allocator = test::CountingAllocator::instance();
  const int64_t before = allocator.live();
  const auto world = emulated_world();
  test::Chain model = test::make_chain({.width = 256, .links = 3, .root_owns = root_owns});
  fsdp::Options sharding{.world = world.get(), .check_ledger = true};
  int64_t in_flight = 0;
  sharding.make_executor = [&](std::vector<fsdp::FlatParamHandle*> handles) {
    return std::make_unique<test::PromptExecutor>(std::move(handles), *world, in_flight);
  };
  Measured result;
  const int64_t whole_model = allocator.live();
  static_cast<void>(allocator.take_peak());
  const auto sharded =
      fsdp::fully_shard(model.ptr(), plan::parse_plan(plan, "plan.json"), sharding);
  result.peaks.initial = static_cast<double>(allocator.take_peak().bytes - whole_model);
  result.sizes = sizes_of(*sharded);
  const auto optimizer = train::make_optimizer(sharded->flat_shards(), {});
  const auto live = [&] { return static_cast<double>(allocator.live() - before); };
  const auto peak = [&] { return static_cast<double>(allocator.take_peak().bytes - before); };
  // The second step: FSDP1's prefetches and PyTorch's bounds are those of a steady step.
  for (int step = 0; step < 2; ++step) {
    Peaks& peaks = result.peaks;
    peaks.sharded = live();
    static_cast<void>(peak());
    in_flight = 0;
    at::Tensor loss = model(test::seeded({2, 256}, 7)).sum();
    peaks.forward = peak();
    peaks.between = live();
    peaks.in_flight_forward = static_cast<double>(std::exchange(in_flight, 0));
    loss.backward();
    loss = at::Tensor();
    peaks.in_flight_backward = static_cast<double>(in_flight);
    peaks.backward = peak();
    peaks.after = live();
    optimizer->step();
    sharded->optimizer_done();
    peaks.optimizer = peak();
    sharded->zero_grad();
    peaks.end = live();
    if (step == 0) {  // with AdamW's new states, which are subtracted below
      EXPECT_NEAR(peaks.optimizer, 4 * result.sizes.shard(), 0.05 * result.sizes.block);
      EXPECT_NEAR(peaks.end, 3 * result.sizes.shard(), 0.05 * result.sizes.block);
    }
  }
  const double states = 2 * result.sizes.shard();
  for (double* each : {&result.peaks.sharded, &result.peaks.forward, &result.peaks.between,
                       &result.peaks.backward, &result.peaks.after, &result.peaks.end}) {
    *each -= states;
  }
  return result;
}

struct Case {
  std::string plan;
  // Numbers of blocks and roots in addition to the shard, for the members of the same name in
  // Peaks.
  std::pair<double, double> forward, between, backward;
  std::pair<double, double> in_flight = {2, 1};  // unsharded parameters in backward
};

std::string plan_of(const std::string& keys) {
  return R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], )" + keys + "}";
}

void expect_count(const Case& test, bool root_owns) {
  SCOPED_TRACE(test.plan + (root_owns ? ", root with parameters" : ", root without"));
  const auto [sizes, peaks] = measure(plan_of(test.plan), root_owns);
  const double tolerance = 0.05 * sizes.block;
  const auto expected = [&, &sizes = sizes](std::pair<double, double> count) {
    return sizes.shard() + count.first * sizes.block + count.second * sizes.root;
  };
  EXPECT_NEAR(peaks.sharded, sizes.shard(), tolerance);
  EXPECT_NEAR(peaks.forward, expected(test.forward), tolerance);
  EXPECT_NEAR(peaks.between, expected(test.between), tolerance);
  EXPECT_NEAR(peaks.backward, expected(test.backward), tolerance);
  EXPECT_NEAR(peaks.after, 2 * sizes.shard(), tolerance);
  EXPECT_NEAR(peaks.end, sizes.shard(), tolerance);
  // Exact to the byte, since no activations are counted: in forward, that peak without the shard.
  const auto unsharded = [&, &sizes = sizes](std::pair<double, double> count) {
    return count.first * sizes.block + count.second * sizes.root;
  };
  EXPECT_EQ(peaks.in_flight_forward, unsharded(test.forward));
  EXPECT_EQ(peaks.in_flight_backward, unsharded(test.in_flight));
  // Units are sharded one at a time: a unit's shard and unsharded parameters are allocated while
  // its original tensors are still alive.
  EXPECT_LE(peaks.initial, 1.5 * std::max(sizes.block, sizes.root) + tolerance);
}

// [Note: What is alive] B is a block, X the root; the sum's largest value over time is the peak.
// Forward of block i:  the root, X; block i, B; with per-parameter sharding also the all-gather's
//   output of i until the next one is copied out, B; of a prefetched block its parameters or
//   all-gather's output, B. Without resharding the earlier blocks too.
// Backward of block 1, the middle one: X; blocks 1 and 0 (prefetched), 2B; fsdp2 keeps the input of
//   block 2's reduce-scatter, B, fsdp1 does not; the reduced gradient of block 2, B/2; block 1's
//   gradients as autograd made them, B; the gradients of the root's output layer, X/2.
// Its reduction, after its parameters are freed: block 0, B; the gradients as they came and as the
//   reduce-scatter reads them, 2B; reduced ones of blocks 2 and 1, B; X + X/2.
const Case kCases[] = {
    // The last forward copies block 2 out while its gathered bytes are there.
    {R"("layout": "per_parameter", "reshard_after_forward": true)", {2, 1}, {0, 0}, {4.5, 1.5}},
    {R"("layout": "per_parameter")", {2, 1}, {0, 1}, {4.5, 1.5}},
    {R"("layout": "per_parameter", "limit_all_gathers": false)", {2, 1}, {0, 1}, {4.5, 1.5}},
    {R"("layout": "per_parameter", "forward_prefetch": 1)", {3, 1}, {0, 1}, {4.5, 1.5}},
    // All blocks, and the last all-gather's output. Backward: block 1's gradients complete, block 2
    // is gone: 2B + B (input) + B/2 + B.
    {R"("layout": "per_parameter", "reshard_after_forward": false)",
     {4, 1},
     {3, 1},
     {4.5, 1.5},
     {3, 1}},
    {R"("layout": "per_parameter", "reshard_after_forward": false, "limit_all_gathers": false)",
     {4, 1},
     {3, 1},
     {4.5, 1.5},
     {3, 1}},
    {R"("layout": "flat")", {1, 1}, {0, 1}, {4.5, 1.5}},
    {R"("layout": "flat", "limit_all_gathers": false)", {1, 1}, {0, 1}, {4.5, 1.5}},
    {R"("layout": "flat", "forward_prefetch": 1)", {2, 1}, {0, 1}, {4.5, 1.5}},
    // Block 2's reduction is equally large: blocks 1 and 0, 2B; gradients twice, 2B; B/2.
    {R"("layout": "flat", "reshard_after_forward": false)", {3, 1}, {3, 1}, {4.5, 1.5}, {3, 1}},
    {R"("layout": "flat", "reshard_after_forward": false, "limit_all_gathers": false)",
     {3, 1},
     {3, 1},
     {4.5, 1.5},
     {3, 1}},
    {R"("dialect": "fsdp1")", {1, 1}, {0, 1}, {4, 1.5}},
    {R"("dialect": "fsdp1", "limit_all_gathers": false)", {1, 1}, {0, 1}, {4, 1.5}},
    {R"("dialect": "fsdp1", "reshard_after_forward": false)", {3, 1}, {3, 1}, {4.5, 1.5}, {3, 1}},
    {R"("dialect": "fsdp1", "reshard_after_forward": false, "limit_all_gathers": false)",
     {3, 1},
     {3, 1},
     {4.5, 1.5},
     {3, 1}},
};

TEST(MemoryTest, BuffersAliveAreThoseThatMustBe) {
  for (const Case& test : kCases) {
    expect_count(test, /*root_owns=*/false);
    expect_count(test, /*root_owns=*/true);
  }
}

// PyTorch's bound for a model that begins without memory, as on its meta device: the shard and the
// largest unit, never the whole model.
TEST(MemoryTest, InitialisationTakesTheShardAndOneUnit) {
  test::CountingAllocator& allocator = test::CountingAllocator::instance();
  const auto world = emulated_world();
  for (const char* keys :
       {R"("layout": "per_parameter")", R"("layout": "flat")", R"("dialect": "fsdp1")"}) {
    for (const bool deferred : {false, true}) {
      SCOPED_TRACE(std::string(keys) + (deferred ? ", deferred" : ""));
      test::Chain model = test::make_chain({.width = 256, .links = 3, .root_owns = true});
      for (at::Tensor& parameter : model->parameters()) {
        at::Tensor none = at::empty({0});
        none.unsafeGetTensorImpl()->set_sizes_contiguous(parameter.sizes());
        parameter.set_data(none);
      }
      const int64_t before = allocator.live();
      static_cast<void>(allocator.take_peak());
      const auto sharded =
          fsdp::fully_shard(model.ptr(), plan::parse_plan(plan_of(keys), "plan.json"),
                            {.world = world.get(), .deferred = deferred});
      if (deferred) {
        sharded->materialize();
      }
      const Sizes sizes = sizes_of(*sharded);
      const double largest = std::max(sizes.block, sizes.root), slack = 0.05 * sizes.block;
      const auto peak = static_cast<double>(allocator.take_peak().bytes - before);
      EXPECT_LE(peak, sizes.shard() + largest + slack);
      EXPECT_NEAR(static_cast<double>(allocator.live() - before), sizes.shard(), slack);
    }
  }
}

// PyTorch's bounds for per-parameter sharding, in MB of fp32: forward 3B + X + S (reshard) or S + U
// + B (keep), backward 3B + X + 2S or S + U + 1.5B, optimizer 4S. PyTorch adds 16 MB for
// activations and a root that is small; here 5 % of a block is enough, and for the keep bound half
// the root.
TEST(MemoryTest, PerParameterShardingKeepsPyTorchsBounds) {
  for (const bool keep : {false, true}) {
    SCOPED_TRACE(keep ? "kept after forward" : "resharded");
    const auto [sizes, peaks] =
        measure(plan_of(std::string(R"("layout": "per_parameter", "forward_prefetch": 1, )") +
                        R"("reshard_after_forward": )" + (keep ? "false" : "true")),
                /*root_owns=*/true);
    const double slack = 0.05 * sizes.block;
    const double s = sizes.shard();
    const double u = sizes.unsharded();
    if (keep) {
      EXPECT_LE(peaks.forward, s + u + sizes.block + slack);
      EXPECT_LE(peaks.backward, s + u + 1.5 * sizes.block + 0.5 * sizes.root + slack);
    } else {
      EXPECT_LE(peaks.forward, 3 * sizes.block + sizes.root + s + slack);
      EXPECT_LE(peaks.backward, 3 * sizes.block + sizes.root + 2 * s + slack);
    }
    // The peaks are also close to the bounds.
    EXPECT_GE(peaks.forward, 3 * sizes.block + s);
    EXPECT_GE(peaks.backward, s + 4.5 * sizes.block);
  }
}

}  // namespace
}  // namespace shardlens
