// Every allocation of the chain is smaller than 512 bytes, so bytes count allocations.
#include "sim/memory/peak_memory.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model/decoder.h"
#include "core/plan/resolve.h"
#include "tests/core/workload/with_communication.h"
#include "tests/sim/engine/chain.h"

namespace shardlens::sim::test {
namespace {

constexpr Bytes kOne = 512, kNoLimit = Bytes{1} << 40;

StepMemory memory_of(const Chain& chain, Bytes capacity = kNoLimit) {
  MemoryOptions options;
  options.capacity = capacity;
  return step_memory(chain.priced(), options);
}

Bytes of(const StepMemory& memory, MemoryCategory category) {
  return memory.at_peak[static_cast<size_t>(category)];
}

// The peak is in the backward of layer 1 of 3. Parameters 3, AdamW 6. Unsharded: layer 1 and layer
// 0, prefetched. Gradients: layer 2's shard, its unsharded one (kept until the next reduction), and
// layer 1's. Activations: what layers 0 and 1 saved, and two that operators pass on.
TEST(StepMemoryTest, PeakOfAChainByHand) {
  const StepMemory memory = memory_of(make_chain({.layers = 3}));
  EXPECT_EQ(memory.peak_allocated, 18 * kOne);
  EXPECT_EQ(of(memory, MemoryCategory::kParameters), 3 * kOne);
  EXPECT_EQ(of(memory, MemoryCategory::kOptimizer), 6 * kOne);
  EXPECT_EQ(of(memory, MemoryCategory::kUnsharded), 2 * kOne);
  EXPECT_EQ(of(memory, MemoryCategory::kGradients), 3 * kOne);
  EXPECT_EQ(of(memory, MemoryCategory::kActivations), 4 * kOne);
  EXPECT_EQ(of(memory, MemoryCategory::kCommunication), 0);
  EXPECT_TRUE(memory.fits);
  Bytes alive = 0;
  for (const AliveAtPeak& each : memory.alive) {
    alive += each.bytes;
  }
  EXPECT_EQ(alive, memory.peak_allocated);
}

// The peak of the chain above is in the backward of layer 1. Communication after that layer's
// forward keeps one more tensor until then if it saves one, and none if it works in place. One that
// makes a new tensor has its input freed as soon as the next operator has run.
TEST(StepMemoryTest, CommunicationSavesAndHandsOn) {
  for (const Bytes saved : {Bytes{0}, Bytes{256}}) {
    for (const Bytes written : {Bytes{0}, Bytes{256}}) {
      Chain chain = make_chain({.layers = 3});
      plan::Communication each;
      each.group = plan::kShardGroup;
      each.unit = 1;
      each.bytes = 256;
      each.saved = saved;
      each.written = written;
      const plan::WorkloadItem forward = shardlens::test::insert_communication(
          chain.workload,
          shardlens::test::position_of(chain.workload, plan::Phase::kForward, 0) + 1, each);
      each.phase = plan::Phase::kBackward;
      each.saved = each.written = 0;
      each.forward = forward;
      // Before the backward of the first layer: that of the loss and of two layers comes before.
      const size_t first = shardlens::test::position_of(chain.workload, plan::Phase::kBackward, 5);
      shardlens::test::insert_communication(chain.workload, first, each);
      chain.step = schedule::planned_step(chain.workload, chain.plan);
      const StepMemory memory = memory_of(chain);
      EXPECT_EQ(memory.peak_allocated, (saved > 0 ? 19 : 18) * kOne) << saved << " " << written;
      EXPECT_EQ(of(memory, MemoryCategory::kActivations), (saved > 0 ? 5 : 4) * kOne);
    }
  }
}

// The history of the same chain: it begins with the state, has the peak in the backward of layer 1,
// and ends with the state and the three shards' gradients.
TEST(StepMemoryTest, TheHistoryHasThePeak) {
  const Chain chain = make_chain({.layers = 3});
  MemoryOptions options;
  options.capacity = kNoLimit;
  EXPECT_TRUE(step_memory(chain.priced(), options).history.empty());
  options.keep_history = true;
  const StepMemory memory = step_memory(chain.priced(), options);
  ASSERT_FALSE(memory.history.empty());
  EXPECT_EQ(memory.history.front().sum(), 9 * kOne);
  EXPECT_EQ(memory.history.front().bytes[static_cast<size_t>(MemoryCategory::kOptimizer)],
            6 * kOne);
  const auto highest = std::max_element(
      memory.history.begin(), memory.history.end(),
      [](const MemoryMoment& a, const MemoryMoment& b) { return a.sum() < b.sum(); });
  EXPECT_EQ(highest->sum(), 18 * kOne);
  EXPECT_EQ(highest->bytes, memory.at_peak);
  EXPECT_TRUE(
      std::is_sorted(memory.history.begin(), memory.history.end(),
                     [](const MemoryMoment& a, const MemoryMoment& b) { return a.item < b.item; }));
  const schedule::PlannedItem& at = chain.step.order.at(highest->item);
  ASSERT_EQ(at.kind, schedule::PlannedItem::Kind::kOperator);
  EXPECT_EQ(chain.workload.operators[at.index].phase, plan::Phase::kBackward);
  EXPECT_EQ(chain.step.unit_names[chain.workload.operators[at.index].unit], "layers.1");
}

// The changes of memory sum to the history at each of its moments, and at the peak to the list of
// what is alive there, which a second replay makes.
TEST(StepMemoryTest, TheChangesSumToTheHistory) {
  const Chain chain = make_chain({.layers = 3});
  MemoryOptions options;
  options.capacity = kNoLimit;
  options.keep_history = true;
  const StepMemory memory = step_memory(chain.priced(), options);
  const auto held_after = [&memory](uint32_t changes) {
    std::vector<Bytes> held(memory.holders.size());
    for (uint32_t i = 0; i < changes; ++i) {
      held[memory.changes[i].holder] += memory.changes[i].bytes;
    }
    return held;
  };
  bool found = false;
  for (const MemoryMoment& moment : memory.history) {
    std::array<Bytes, kMemoryCategoryCount> sums{};
    const std::vector<Bytes> held = held_after(moment.changes);
    for (size_t i = 0; i < held.size(); ++i) {
      sums[static_cast<size_t>(memory.holders[i].category)] += held[i];
    }
    EXPECT_EQ(sums, moment.bytes) << moment.item;
    if (moment.sum() != memory.peak_allocated || std::exchange(found, true)) {
      continue;
    }
    size_t listed = 0;
    for (size_t i = 0; i < held.size(); ++i) {
      if (held[i] == 0) {
        continue;
      }
      ++listed;
      const MemoryHolder& of = memory.holders[i];
      const auto alive =
          std::find_if(memory.alive.begin(), memory.alive.end(), [&of](const AliveAtPeak& each) {
            return each.category == of.category && each.unit == of.unit && each.what == of.what;
          });
      ASSERT_NE(alive, memory.alive.end()) << of.what;
      EXPECT_EQ(alive->bytes, held[i]) << of.what;
    }
    EXPECT_EQ(listed, memory.alive.size());
  }
  EXPECT_TRUE(found);
}

// The same step with shards, gradients and optimizer on the host. What is left at the peak: layer 1
// and layer 0 unsharded, layer 2's unsharded gradient and reduced one, layer 1's gradients, and the
// activations. Nothing is left between steps.
TEST(StepMemoryTest, OffloadedStateIsNotOnTheDevice) {
  const Chain chain =
      make_chain({.layers = 3, .change = [](plan::Plan& plan) { plan.cpu_offload = true; }});
  MemoryOptions options;
  options.capacity = kNoLimit;
  options.keep_history = true;
  const StepMemory memory = step_memory(chain.priced(), options);
  EXPECT_EQ(memory.peak_allocated, 9 * kOne);
  EXPECT_EQ(of(memory, MemoryCategory::kParameters), 0);
  EXPECT_EQ(of(memory, MemoryCategory::kOptimizer), 0);
  EXPECT_EQ(of(memory, MemoryCategory::kUnsharded), 2 * kOne);
  EXPECT_EQ(of(memory, MemoryCategory::kGradients), 2 * kOne);
  EXPECT_EQ(of(memory, MemoryCategory::kCommunication), kOne);
  EXPECT_EQ(of(memory, MemoryCategory::kActivations), 4 * kOne);
  EXPECT_EQ(memory.history.front().sum(), 0);
  EXPECT_EQ(memory.history.back().sum(), 0);
}

// The storage of two of three layers is kept: it is there between steps, besides shards and states,
// as tests/data/later_orders.json has it of all units.
TEST(StepMemoryTest, StorageThatIsKeptIsThereAllTheTime) {
  const Chain chain = make_chain({.layers = 3, .change = [](plan::Plan& plan) {
                                    plan.keep_unsharded_storage = true;
                                    plan.units[1].keep_unsharded_storage = false;
                                  }});
  MemoryOptions options;
  options.capacity = kNoLimit;
  options.keep_history = true;
  const StepMemory memory = step_memory(chain.priced(), options);
  EXPECT_EQ(memory.history.front().sum(), (9 + 2) * kOne);
  EXPECT_EQ(memory.history.back().sum(), (9 + 3 + 2) * kOne);
}

// Of three layers one is on the host: its shard, its gradient and its states are not on the device.
TEST(StepMemoryTest, OneOffloadedUnitOfThree) {
  const Chain chain = make_chain(
      {.layers = 3, .change = [](plan::Plan& plan) { plan.units[1].cpu_offload = true; }});
  MemoryOptions options;
  options.capacity = kNoLimit;
  options.keep_history = true;
  const StepMemory memory = step_memory(chain.priced(), options);
  EXPECT_EQ(memory.history.front().sum(), 6 * kOne);
  EXPECT_EQ(memory.history.back().sum(), (6 + 2) * kOne);
}

// The optimizer uses each gradient in backward: none is left at the end. While a layer's unsharded
// gradient is there, so are the reduced ones of all layers before it; with the key only that of the
// last one, whose buffer is freed with the next reduction. A reduced gradient in another dtype than
// the optimizer's is a tensor of its own, which is gone by then.
TEST(StepMemoryTest, OptimizerInBackwardKeepsNoGradients) {
  const auto memory = [](bool in_backward, const char* dtype) {
    const Chain chain = make_chain({.layers = 8, .change = [&](plan::Plan& plan) {
                                      plan.optimizer_in_backward = in_backward;
                                      if (dtype != nullptr) {
                                        plan.mixed_precision.reduce_dtype = parse_dtype(dtype);
                                      }
                                    }});
    MemoryOptions options;
    options.capacity = kNoLimit;
    options.keep_history = true;
    return step_memory(chain.priced(), options);
  };
  const auto most = [](const StepMemory& of, MemoryCategory category) {
    Bytes most = 0;
    for (const MemoryMoment& moment : of.history) {
      most = std::max(most, moment.bytes[static_cast<size_t>(category)]);
    }
    return most;
  };
  for (const char* dtype : {static_cast<const char*>(nullptr), "bf16"}) {
    const StepMemory without = memory(false, dtype), with = memory(true, dtype);
    EXPECT_EQ(without.history.back().sum(), (8 + 16 + 8) * kOne);
    EXPECT_EQ(with.history.front().sum(), (8 + 16) * kOne);
    EXPECT_EQ(with.history.back().sum(), (8 + 16) * kOne);
    EXPECT_EQ(most(without, MemoryCategory::kGradients) - most(with, MemoryCategory::kGradients),
              (dtype == nullptr ? 6 : 7) * kOne);
  }
}

// Kept after forward: all three units are unsharded when backward begins.
// Six layers of 16 MiB, which is also a segment. Segments that must exist because FSDP1's
// record_stream() delays reuse, beyond those without delay:
//   Gathers. Without delay 2 are enough (in backward, a layer and the one prefetched). The
//   limiter's queue has three frees when a step begins, so forward's k-th gather waits for the free
//   of layer k - 3, and two freed ones wait next to the new one: 3. In backward, two in use and one
//   waiting. Gradients. A layer's are two tensors for a moment: as autograd makes them, and
//   flattened for the reduction, which frees it. When layer k's backward begins, the gather of
//   layer k - 1 waits for compute to pass layer k + 2's backward, so the gradients of k + 1 and k +
//   2 are not reusable. In layer 0's backward nothing is gathered: those of layers 1, 2 and 3 are
//   not. 5 in place of 2.
// Without the limiter no block is used again: 12 gathers in place of 2, and in layer 0's backward
// the gradients of five other layers.
TEST(StepMemoryTest, Fsdp1ReusesWhenComputeHasPassed) {
  constexpr int kLayers = 6;
  constexpr Bytes kSegment = Bytes{16} << 20;
  const auto reserved = [](plan::Dialect dialect, bool limit, bool delays) {
    Chain chain = make_chain({.layers = kLayers, .change = [&](plan::Plan& plan) {
                                plan.dialect = dialect;
                                plan.limit_all_gathers = limit;
                              }});
    for (plan::Parameter& each : chain.plan.tree.parameters) {
      each.numel = kSegment / 4;
      each.shape = {2048, each.numel / 2048};
    }
    MemoryOptions options;
    options.capacity = kNoLimit;
    options.delays_reuse = delays;
    return step_memory(chain.priced(), options).peak_reserved;
  };
  const auto more = [&](plan::Dialect dialect, bool limit) {
    return reserved(dialect, limit, true) - reserved(dialect, limit, false);
  };
  EXPECT_EQ(more(plan::Dialect::kFsdp1, true), (1 + 3) * kSegment);
  EXPECT_EQ(more(plan::Dialect::kFsdp1, false), (10 + 5) * kSegment);
  EXPECT_EQ(more(plan::Dialect::kFsdp2, true), 0);
}

TEST(StepMemoryTest, KeptParametersAreAllUnsharded) {
  const StepMemory memory = memory_of(make_chain({.layers = 3, .strategy = "shard_grad_op"}));
  EXPECT_EQ(of(memory, MemoryCategory::kUnsharded), 3 * kOne);
}

// One more layer costs its input with checkpoints, and all that it saves without.
TEST(StepMemoryTest, CheckpointsKeepTheirInputsAlone) {
  static constexpr int64_t kRows = 8192, kHidden = 256;
  const auto activations = [](int64_t layers, bool checkpoint) {
    const plan::DecoderShape shape{.layers = layers,
                                   .hidden = kHidden,
                                   .ffn = 4 * kHidden,
                                   .heads = 4,
                                   .kv_heads = 4,
                                   .vocab = 64,
                                   .gated = true};
    const plan::ModuleTree tree = plan::decoder_tree(shape);
    plan::Plan plan = plan::strategy_plan("full_shard", tree);
    if (checkpoint) {
      plan.activation_checkpointing = {"layers.*"};
    }
    const plan::ResolvedPlan resolved = plan::resolve(plan, tree, 4);
    const plan::Workload workload =
        plan::decoder_workload(shape, resolved, {.batch = 1, .seq = kRows});
    const schedule::PlannedStep step = schedule::planned_step(workload, resolved);
    MemoryOptions options;
    options.capacity = kNoLimit;
    return of(step_memory(PricedStep::borrowed(workload, resolved, step, {}), options),
              MemoryCategory::kActivations);
  };
  // Not exact: the allocator does not split a block that is only a little too large.
  const auto inputs = static_cast<double>(4 * kRows * kHidden * 4);
  EXPECT_NEAR(static_cast<double>(activations(8, true) - activations(4, true)), inputs,
              0.01 * inputs);
  // Two norms (input and one statistic per row), q, k, v and their output (and one number per row
  // and head), the inputs of qkv and the MLP, gate and up, and their product.
  const Bytes saved =
      kRows * 4 * (2 * (kHidden + 1) + (4 * kHidden + 4) + 2 * kHidden + 12 * kHidden);
  EXPECT_EQ(activations(8, false) - activations(4, false), 4 * saved);
}

// What an optimizer with foreach keeps while it runs comes after the last microbatch, which begins
// with the memory of the one before, however many there are.
TEST(StepMemoryTest, TheOptimizersTensorsComeAfterAnyNumberOfMicrobatches) {
  const plan::DecoderShape shape{.layers = 4,
                                 .hidden = 256,
                                 .ffn = 1024,
                                 .heads = 4,
                                 .kv_heads = 4,
                                 .vocab = 64,
                                 .gated = true};
  const plan::ModuleTree tree = plan::decoder_tree(shape);
  const plan::ResolvedPlan resolved =
      plan::resolve(plan::strategy_plan("replicate", tree), tree, 4);
  const auto peak = [&](int64_t accumulate) {
    const plan::Workload workload =
        plan::decoder_workload(shape, resolved,
                               {.batch = 1,
                                .seq = 16,
                                .accumulate = accumulate,
                                .optimizer_impl = plan::OptimizerImpl::kForeach});
    const schedule::PlannedStep step = schedule::planned_step(workload, resolved);
    MemoryOptions options;
    options.capacity = kNoLimit;
    return step_memory(PricedStep::borrowed(workload, resolved, step, {}), options).peak_allocated;
  };
  for (const int64_t accumulate : {3, 4, 6}) {
    EXPECT_EQ(peak(accumulate), peak(2)) << accumulate;
  }
}

TEST(StepMemoryTest, CategoriesSumToThePeak) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard"}) {
    for (const plan::Dialect dialect : {plan::Dialect::kFsdp1, plan::Dialect::kFsdp2}) {
      const Chain chain = make_chain({.layers = 5,
                                      .strategy = strategy,
                                      .ranks = 4,
                                      .accumulate = 2,
                                      .sync_every_microbatch = false,
                                      .change = [&](plan::Plan& plan) {
                                        plan.dialect = dialect;
                                        plan.mixed_precision.param_dtype = DType::kBF16;
                                        plan.mixed_precision.reduce_dtype = DType::kF32;
                                      }});
      const StepMemory memory = memory_of(chain);
      EXPECT_EQ(std::accumulate(memory.at_peak.begin(), memory.at_peak.end(), Bytes{0}),
                memory.peak_allocated);
      EXPECT_GE(memory.peak_reserved, memory.peak_allocated);
      EXPECT_EQ(of(memory, MemoryCategory::kOptimizer),
                2 * of(memory, MemoryCategory::kParameters));
      // FSDP2 accumulates waiting gradients in the reduction's dtype, FSDP1 in their own.
      EXPECT_EQ(of(memory, MemoryCategory::kCommunication) > 0, dialect == plan::Dialect::kFsdp2)
          << strategy;
    }
  }
}

TEST(StepMemoryTest, OutOfMemoryIsAVerdict) {
  const Chain chain = make_chain({.layers = 3});
  const Bytes needed = memory_of(chain).peak_reserved;
  EXPECT_TRUE(memory_of(chain, needed).fits);
  // What it needs does not depend on how much there is.
  for (const Bytes capacity : {needed - 1, needed / 2, Bytes{1}}) {
    StepMemory memory = memory_of(chain, capacity);
    EXPECT_FALSE(memory.fits);
    const StepMemory enough = memory_of(chain);
    EXPECT_EQ(memory.peak_reserved, needed);
    EXPECT_EQ(memory.peak_allocated, enough.peak_allocated);
    EXPECT_EQ(memory.at_peak, enough.at_peak);
  }
}

}  // namespace
}  // namespace shardlens::sim::test
