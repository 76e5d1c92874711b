// Steps whose microbatches or layers are counted take as long as steps that are simulated in full.
#include "sim/engine/repeated.h"

#include <random>

#include <gtest/gtest.h>

#include "core/schedule/planned/microbatches.h"
#include "tests/sim/engine/chain.h"

namespace shardlens::sim::test {
namespace {

class Chooser {
 public:
  explicit Chooser(unsigned seed) : random_(seed) {}
  template <class T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[std::uniform_int_distribution<size_t>(0, choices.size() - 1)(random_)];
  }
  Nanoseconds time(Nanoseconds most) {
    return std::uniform_int_distribution<Nanoseconds>(0, most)(random_);
  }

 private:
  std::mt19937 random_;
};

Durations random_durations(Chooser& choose) {
  Durations out{.forward = choose.time(20'000),
                .backward = 2 * choose.time(20'000),
                .all_gather = choose.time(30'000),
                .reduce_scatter = choose.time(30'000),
                .all_reduce = choose.time(30'000),
                .copy = choose.time(1'000),
                .optimizer = choose.time(5'000),
                .peer_wait = choose.of<Nanoseconds>({0, 700}),
                .issue_operator = choose.of<Nanoseconds>({0, 100, 1'000, 8'000, 30'000}),
                .issue_action = choose.of<Nanoseconds>({0, 20, 500, 3'000}),
                .issue_collective = choose.of<Nanoseconds>({0, 50, 2'000})};
  out.compute_slowdown = choose.of({1.0, 1.13, 1.7});
  out.collective_slowdown = choose.of({1.0, 1.21});
  out.shares_links = choose.of({true, false});
  out.latency = out.shares_links ? choose.time(1'000) : 0;
  out.copy_engines = choose.of({true, false});
  return out;
}

ChainOptions random_chain(Chooser& choose) {
  ChainOptions out{.layers = choose.of({1, 2, 5}),
                   .strategy = choose.of<std::string>(
                       {"full_shard", "full_shard", "shard_grad_op", "no_shard", "replicate"}),
                   .accumulate = choose.of({3, 4, 5, 8}),
                   .sync_every_microbatch = choose.of({true, true, true, false})};
  if (out.strategy == "replicate") {
    return out;
  }
  const bool fsdp1 = choose.of({true, false, false, false}), flat = choose.of({true, false});
  const bool half = choose.of({true, false}), hybrid = choose.of({true, false, false});
  const int64_t forward = choose.of<int64_t>({0, 1});
  const bool backward = choose.of({true, false}), separate = choose.of({true, false});
  const int64_t inputs = choose.of<int64_t>({1, 1, 2});
  out.ranks = hybrid ? 4 : 2;
  out.change = [=](plan::Plan& plan) {
    plan.dialect = fsdp1 ? plan::Dialect::kFsdp1 : plan::Dialect::kFsdp2;
    plan.layout = flat || fsdp1 ? plan::Layout::kFlat : plan::Layout::kPerParameter;
    plan.forward_prefetch = forward;
    plan.reduce_scatter_max_input_buffers = fsdp1 ? 1 : inputs;
    plan.backward_prefetch =
        backward ? plan::BackwardPrefetch::kPre : plan::BackwardPrefetch::kNone;
    if (half) {
      plan.mixed_precision.param_dtype = DType::kBF16;
      plan.mixed_precision.reduce_dtype = DType::kF32;
    }
    if (hybrid) {
      plan.mesh.shard = plan.mesh.replicate = 2;
      plan.separate_reduce_scatter_group = separate && !fsdp1;
    }
  };
  return out;
}

// With few items in the test's own microbatches, each of the reasons to simulate all of them is met
// often: a host that is slower than the device or ahead of it by less than an item, limiters, and
// gradients that only the last microbatch reduces.
TEST(RepeatedTest, CountedMicrobatchesTakeAsLongAsSimulatedOnes) {
  Chooser choose(31);
  int counted = 0, simulated = 0, different = 0;
  for (int i = 0; i < 1'500; ++i) {
    SCOPED_TRACE(i);
    const Chain chain = make_chain(random_chain(choose));
    const Durations durations = random_durations(choose);
    const auto repeated = repeated_microbatches(chain.step);
    if (!repeated) {
      ++different;
      continue;
    }
    EXPECT_EQ(repeated->count, chain.microbatches - 2);
    const SimulatedStep full = chain.run(durations);
    const SimulatedStep found = chain.run(durations, {.repeated = repeated});
    (found.ranks[0].items.empty() ? counted : simulated) += 1;
    ASSERT_EQ(found.duration, full.duration);
    ASSERT_EQ(found.ranks[0].figures, full.ranks[0].figures);
  }
  EXPECT_GT(counted, 300);
  EXPECT_GT(simulated, 300);
  EXPECT_GT(different, 100);
}

TEST(RepeatedTest, FurtherMicrobatchesTakeAsLongToo) {
  Chooser choose(32);
  int counted = 0;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    ChainOptions options = random_chain(choose);
    options.accumulate = 4;
    const Chain four = make_chain(options);
    options.accumulate = 9;
    const Durations durations = random_durations(choose);
    const auto repeated = repeated_microbatches(four.step);
    if (!repeated) {
      continue;
    }
    const SimulatedStep found = four.run(durations, {.more_microbatches = 5, .repeated = repeated});
    if (found.ranks[0].items.empty()) {
      ++counted;
      const SimulatedStep full = make_chain(options).run(durations);
      ASSERT_EQ(found.duration, full.duration);
      ASSERT_EQ(found.ranks[0].figures, full.ranks[0].figures);
    }
  }
  EXPECT_GT(counted, 50);
}

// Without times of single items, the simulator counts layers that do the same.
TEST(EqualLayersTest, TakeAsLongAsIfEachWereRun) {
  Chooser choose(33);
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    ChainOptions options = random_chain(choose);
    options.layers = choose.of({6, 12, 30});
    options.accumulate = choose.of({1, 1, 2});
    const Chain chain = make_chain(options);
    const Durations durations = random_durations(choose);
    const HostMode host = choose.of({HostMode::kAhead, HostMode::kAhead, HostMode::kCompute});
    const SimulatedStep full = chain.run(durations, {.host = host});
    const SimulatedStep found = chain.run(durations, {.host = host, .keep_times = false});
    ASSERT_EQ(found.duration, full.duration);
    ASSERT_EQ(found.ranks[0].figures, full.ranks[0].figures);
    ASSERT_EQ(found.ranks[0].waited, full.ranks[0].waited);
  }
}

// A second microbatch is found only if there is a third one that does the same.
TEST(RepeatedTest, NeedsThreeMicrobatchesThatAreAlike) {
  EXPECT_FALSE(repeated_microbatches(make_chain({.accumulate = 1}).step));
  EXPECT_FALSE(repeated_microbatches(make_chain({.accumulate = 2}).step));
  const Chain three = make_chain({.accumulate = 3});
  const auto repeated = repeated_microbatches(three.step);
  ASSERT_TRUE(repeated);
  const std::vector<size_t> begins = schedule::microbatches(three.step);
  EXPECT_EQ(repeated->begin, begins[1]);
  EXPECT_EQ(repeated->end, begins[2]);
  EXPECT_EQ(repeated->tail, 2 * begins[2] - begins[1]);
  // The last one reduces what the others have accumulated.
  EXPECT_FALSE(
      repeated_microbatches(make_chain({.accumulate = 3, .sync_every_microbatch = false}).step));
}

}  // namespace
}  // namespace shardlens::sim::test
