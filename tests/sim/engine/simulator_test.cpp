// Closed forms of a step's time. Symbols: N layers, c and cb a layer's forward and backward, a
// all-gather, r reduce-scatter, x all-reduce. Sources: PyTorch's test_fully_shard_overlap.py (85
// and 170 ms); the rest is worked out by hand from the order of collectives that PyTorch issues.
#include "sim/engine/simulator.h"

#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/engine/chain.h"

namespace shardlens::sim::test {
namespace {

constexpr Nanoseconds kMs = 1'000'000;
constexpr SimulationOptions kReadsLoss{.waits_for_loss = true};

Durations durations(Nanoseconds c, Nanoseconds cb, Nanoseconds a, Nanoseconds r) {
  return {.forward = c, .backward = cb, .all_gather = a, .reduce_scatter = r};
}

// PyTorch's test_fully_shard_overlap: 3 layers, 25 ms forward, 50 ms backward, 10 ms communication.
TEST(SimulatorTest, PyTorchsOverlapTest) {
  const Chain chain = make_chain({.layers = 3});
  const SimulatedStep step =
      chain.run(durations(25 * kMs, 50 * kMs, 10 * kMs, 10 * kMs), kReadsLoss);
  ASSERT_EQ(step.ranks.size(), 1U);
  EXPECT_EQ(chain.forward_end(step.ranks[0]), 85 * kMs);
  EXPECT_EQ(step.duration - chain.forward_end(step.ranks[0]), 170 * kMs);
  const StepFigures& figures = step.ranks[0].figures;
  EXPECT_EQ(figures.compute, 3 * 75 * kMs);
  EXPECT_EQ(figures.comm, 9 * 10 * kMs);
  EXPECT_EQ(figures.exposed_comm, 30 * kMs);  // the first all-gather of each direction, the last RS
  EXPECT_EQ(figures.idle, 0);
}

class ForwardTest
    : public ::testing::TestWithParam<std::tuple<int, Nanoseconds, Nanoseconds, bool>> {};

// a <= c: a + N c;  a >= c: N a + c.
TEST_P(ForwardTest, Identity) {
  const auto [n, c, a, fsdp1] = GetParam();
  const Chain chain = make_chain({.layers = n, .change = [fsdp1 = fsdp1](plan::Plan& plan) {
                                    plan.dialect =
                                        fsdp1 ? plan::Dialect::kFsdp1 : plan::Dialect::kFsdp2;
                                  }});
  const SimulatedStep step = chain.run(durations(c, 2 * c, a, a), kReadsLoss);
  EXPECT_EQ(chain.forward_end(step.ranks[0]), a <= c ? a + n * c : n * a + c);
}
INSTANTIATE_TEST_SUITE_P(Grid,
                         ForwardTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 8),
                                            ::testing::Values(100, 250),
                                            ::testing::Values(1, 99, 100, 180, 700),
                                            ::testing::Bool()),
                         [](const auto& each) {
                           return "layers_" + std::to_string(std::get<0>(each.param)) +
                                  "_forward_" + std::to_string(std::get<1>(each.param)) +
                                  "_all_gather_" + std::to_string(std::get<2>(each.param)) +
                                  (std::get<3>(each.param) ? "_fsdp1" : "_fsdp2");
                         });

class BackwardTest
    : public ::testing::TestWithParam<std::tuple<int, Nanoseconds, Nanoseconds, Nanoseconds>> {
 protected:
  static Nanoseconds backward(const Chain& chain, const Durations& d) {
    const SimulatedStep step = chain.run(d, kReadsLoss);
    return step.duration - chain.forward_end(step.ranks[0]);
  }
};

TEST_P(BackwardTest, WithPrefetch) {
  const auto [n, cb, a, r] = GetParam();
  const Nanoseconds time = backward(make_chain({.layers = n}), durations(50, cb, a, r));
  if (a + r <= cb) {
    EXPECT_EQ(time, a + n * cb + r);
  } else if (n >= 2 && a <= cb && r <= cb) {
    // Every layer waits for the reduce-scatter and the all-gather that were issued before it.
    EXPECT_EQ(time, a + 2 * cb + (n - 2) * (a + r) + r);
  }
}

TEST_P(BackwardTest, WithoutPrefetch) {
  const auto [n, cb, a, r] = GetParam();
  const Chain chain = make_chain({.layers = n, .change = [](plan::Plan& plan) {
                                    plan.backward_prefetch = plan::BackwardPrefetch::kNone;
                                  }});
  EXPECT_EQ(backward(chain, durations(50, cb, a, r)), n * (a + cb + r));
}

TEST_P(BackwardTest, KeptAfterForward) {
  const auto [n, cb, a, r] = GetParam();
  if (r <= cb) {
    EXPECT_EQ(
        backward(make_chain({.layers = n, .strategy = "shard_grad_op"}), durations(50, cb, a, r)),
        n * cb + r);
  }
}
INSTANTIATE_TEST_SUITE_P(Grid,
                         BackwardTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 7),
                                            ::testing::Values(100, 300),
                                            ::testing::Values(10, 90, 200),
                                            ::testing::Values(10, 80, 290)),
                         [](const auto& each) {
                           return "layers_" + std::to_string(std::get<0>(each.param)) +
                                  "_backward_" + std::to_string(std::get<1>(each.param)) +
                                  "_all_gather_" + std::to_string(std::get<2>(each.param)) +
                                  "_reduce_scatter_" + std::to_string(std::get<3>(each.param));
                         });

// A frozen layer has no gradients of its own, so it has half a backward and no reduction, and it is
// hidden by the next all-gather, which otherwise waits for that reduction. Without a trainable
// layer before it, it has no backward. The first trained layer passes no gradient on, so it has
// half a backward, too.
TEST(SimulatorTest, FrozenUnits) {
  constexpr int kLayers = 4;
  constexpr Nanoseconds kForward = 50, kBackward = 100, kGather = 60, kReduce = 90;
  // Without prefetch these run one after the other.
  constexpr Nanoseconds kTrained = kGather + kBackward + kReduce;
  for (int frozen = 0; frozen < kLayers; ++frozen) {
    const Chain chain =
        make_chain({.layers = kLayers, .change = [frozen](plan::Plan& plan) {
                      plan.backward_prefetch = plan::BackwardPrefetch::kNone;
                      plan.frozen_parameters = {"layers." + std::to_string(frozen) + ".**"};
                    }});
    const SimulatedStep step =
        chain.run(durations(kForward, kBackward, kGather, kReduce), kReadsLoss);
    const Nanoseconds expected =
        (kLayers - 1) * kTrained - kBackward / 2 + (frozen == 0 ? 0 : kGather);
    EXPECT_EQ(step.duration - chain.forward_end(step.ranks[0]), expected) << frozen;
    const int gathers = kLayers + (frozen == 0 ? kLayers - 1 : kLayers);
    EXPECT_EQ(step.ranks[0].figures.comm, gathers * kGather + (kLayers - 1) * kReduce);
  }
}

// A host that never waits issues the first all-gather of backward during the last forward.
TEST(SimulatorTest, HostFarAheadHidesTheFirstBackwardAllGather) {
  const SimulatedStep step = make_chain({.layers = 4}).run(durations(100, 200, 60, 90));
  EXPECT_EQ(step.duration, 60 + 4 * 100 + 4 * 200 + 90);
}

// Layer 0 takes long. Without a limit, every all-gather overlaps it; with two in flight, the third
// waits for it. FSDP1's queue of pending frees is kept from step to step, and each all-gather
// removes only one, so from the second step on the fourth is the first to wait.
TEST(SimulatorTest, Limiter) {
  constexpr Nanoseconds kLong = 1000, kGather = 40;
  constexpr int kLayers = 5;
  for (const plan::Dialect dialect : {plan::Dialect::kFsdp1, plan::Dialect::kFsdp2}) {
    const auto forward = [&](bool limit, int step_number) {
      const Chain chain = make_chain({.layers = kLayers,
                                      .first_is_wide = true,
                                      .change =
                                          [&](plan::Plan& plan) {
                                            plan.dialect = dialect;
                                            plan.limit_all_gathers = limit;
                                          },
                                      .step = step_number});
      Durations d = durations(10, 20, kGather, 1);
      d.wide_forward = kLong;
      const SimulatedStep step = chain.run(d, kReadsLoss);
      return chain.forward_end(step.ranks[0]);
    };
    EXPECT_EQ(forward(false, 3), kGather + kLong + (kLayers - 1) * 10);
    EXPECT_EQ(forward(true, 1), kGather + kLong + (kLayers - 2) * kGather + 10);
    const int beside = dialect == plan::Dialect::kFsdp1 ? 3 : 2;
    EXPECT_EQ(forward(true, 3), kGather + kLong + (kLayers - beside) * kGather + 10);
  }
}

// The all-reduce has its own communicator: it overlaps the next unit's all-gather and
// reduce-scatter.
TEST(SimulatorTest, HybridAllReducesConcurrently) {
  Durations d = durations(100, 200, 60, 90);
  d.all_reduce = 150;
  const Chain chain = make_chain({.layers = 4, .strategy = "hybrid_shard", .ranks = 4});
  const SimulatedStep step = chain.run(d, kReadsLoss);
  EXPECT_EQ(step.duration, (60 + 4 * 100) + (60 + 4 * 200 + 90 + 150));
  EXPECT_EQ(step.ranks[0].figures.overlap + step.ranks[0].figures.exposed_comm,
            step.ranks[0].figures.comm);
}

Chain chain_with_separate_group(int layers, bool separate = true) {
  return make_chain({.layers = layers, .change = [separate](plan::Plan& plan) {
                       plan.separate_reduce_scatter_group = separate;
                     }});
}

// With one communicator, every layer waits for a reduce-scatter and an all-gather (see
// BackwardTest); with two that do not share links, both are shorter than a layer, so only the first
// all-gather and the last reduce-scatter are exposed.
TEST(SimulatorTest, SeparateReduceScatterGroup) {
  constexpr Nanoseconds kForward = 50, kBackward = 200, kGather = 150, kReduce = 120;
  for (const int n : {2, 3, 7}) {
    const auto backward = [&](bool separate, const SimulationOptions& options) {
      const Chain chain = chain_with_separate_group(n, separate);
      const SimulatedStep step =
          chain.run(durations(kForward, kBackward, kGather, kReduce), options);
      return step.duration - chain.forward_end(step.ranks[0]);
    };
    EXPECT_EQ(backward(false, kReadsLoss),
              kGather + 2 * kBackward + (n - 2) * (kGather + kReduce) + kReduce);
    EXPECT_EQ(backward(true, kReadsLoss), kGather + n * kBackward + kReduce);
    // On a CPU the second communicator is a second thread.
    EXPECT_EQ(backward(true, {.host = HostMode::kCompute}), kGather + n * kBackward + kReduce);
    if (n > 2) {
      EXPECT_GT(backward(false, {.host = HostMode::kCompute}), kGather + n * kBackward + kReduce);
    }
  }
}

// Three layers, backward 100, all-gather 60, reduce-scatter 90. Counted from the beginning of layer
// 1's backward, when the last layer's reduce-scatter (R2) begins:
//   one communicator     the first layer's all-gather (A0) is behind R2: R2 0 to 90, A0 90 to 150,
//                        layer 0 150 to 250, R0 250 to 340.
//   two, no latency      A0 began at -40. R2 and A0's other 20 at half rate until 40, R2's other 70
//                        until 110. Layer 1's reduction waits for R2; layer 0 110 to 210, R0 210 to
//                        300. R1 is hidden.
//   two, latency 20      with R2, A0 takes (20 + 2 * 40) / 60 times as long: its 20 until 33. R2's
//                        rate is 90 / (20 + 2 * 70) until then, so its other 71 end at 104, layer 0
//                        at 204, R0 at 294.
//   two, nothing shared  R2 until 90; layer 0 100 to 200, R0 until 290.
TEST(SimulatorTest, CommunicatorsShareLinks) {
  constexpr Nanoseconds kBefore = 60 + 100;  // first all-gather and layer 2's backward
  const auto backward = [](bool separate, bool shares, Nanoseconds latency) {
    const Chain chain = chain_with_separate_group(3, separate);
    Durations d = durations(50, 100, 60, 90);
    d.shares_links = shares;
    d.latency = latency;
    const SimulatedStep step = chain.run(d, kReadsLoss);
    return step.duration - chain.forward_end(step.ranks[0]);
  };
  EXPECT_EQ(backward(false, true, 0), kBefore + 340);
  EXPECT_EQ(backward(false, true, 20), kBefore + 340);
  EXPECT_EQ(backward(true, true, 0), kBefore + 300);
  EXPECT_EQ(backward(true, true, 20), kBefore + 294);
  EXPECT_EQ(backward(true, false, 0), kBefore + 290);
}

TEST(SimulatorTest, ReplicatedUnitsOnlyAllReduce) {
  Durations d = durations(100, 200, 60, 90);
  d.all_reduce = 150;
  const SimulatedStep step = make_chain({.layers = 4, .strategy = "no_shard"}).run(d, kReadsLoss);
  EXPECT_EQ(step.duration, 4 * 100 + 4 * 200 + 150);
  EXPECT_EQ(step.ranks[0].figures.comm, 4 * 150);
}

TEST(SimulatorTest, Limits) {
  const Durations all = durations(100, 200, 60, 90);
  const auto total = [](const ChainOptions& options, const Durations& d) {
    return make_chain(options).run(d, kReadsLoss).duration;
  };
  EXPECT_EQ(total({.layers = 5, .ranks = 1}, all), 5 * 300);            // one rank
  EXPECT_EQ(total({.layers = 5}, durations(100, 200, 0, 0)), 5 * 300);  // infinite bandwidth
  EXPECT_EQ(total({.layers = 5}, durations(0, 0, 60, 90)), 5 * 60 + 5 * (60 + 90));  // no compute
}

TEST(SimulatorTest, Accumulation) {
  const Durations d = durations(100, 200, 60, 90);
  const Nanoseconds forward = 60 + 4 * 100, backward = 60 + 4 * 200;
  EXPECT_EQ(make_chain({.layers = 4, .accumulate = 3}).run(d, kReadsLoss).duration,
            3 * (forward + backward + 90));  // each backward ends with its last reduction
  EXPECT_EQ(make_chain({.layers = 4, .accumulate = 3, .sync_every_microbatch = false})
                .run(d, kReadsLoss)
                .duration,
            3 * (forward + backward) + 90);
}

// On a CPU the host computes: without prefetch no part of a forward all-gather is hidden.
TEST(SimulatorTest, HostIsCompute) {
  const Chain chain = make_chain({.layers = 4});
  const SimulatedStep step = chain.run(durations(100, 200, 60, 90), {.host = HostMode::kCompute});
  EXPECT_EQ(chain.forward_end(step.ranks[0]), 4 * (60 + 100));
  EXPECT_EQ(step.duration, 4 * (60 + 100) + 60 + 4 * 200 + 90);
}

// A collective overlaps the rest of the call that issues it.
TEST(SimulatorTest, OnACpuACollectiveBeginsWithinItsCall) {
  const Chain chain = make_chain({.layers = 4});
  Durations d = durations(100, 200, 60, 90);
  d.issue_collective = 40;
  const SimulatedStep step = chain.run(d, {.host = HostMode::kCompute});
  EXPECT_EQ(chain.forward_end(step.ranks[0]), 4 * (60 + 100));
}

// Compute takes 1.5 times as long during communication. A device's kernel spins while it waits for
// peers: in its 60, a layer does 40 of its 100. A CPU's thread sleeps: 30 of its 60 do not slow
// compute.
TEST(SimulatorTest, WaitingForPeers) {
  Durations d = durations(100, 200, 30, 30);
  d.compute_slowdown = 1.5;
  d.peer_wait = 30;
  const Chain chain = make_chain({.layers = 2});
  EXPECT_EQ(chain.forward_end(chain.run(d, kReadsLoss).ranks[0]), 60 + (60 + 60) + 100);
  const SimulatedStep cpu = chain.run(d, {.host = HostMode::kCompute});
  EXPECT_EQ(cpu.duration, 2 * (60 + 100) + 60 + 2 * (30 + 30 + 150) + 60);
  EXPECT_EQ(cpu.ranks[0].figures.comm, 6 * 60);
}

// Its own compute makes no other rank later: of an all-gather and a reduction beside compute only
// the transfer of 30 takes twice as long.
TEST(SimulatorTest, ComputeDoesNotProlongTheWaitForPeers) {
  Durations d = durations(100, 200, 30, 30);
  d.collective_slowdown = 2;
  d.peer_wait = 30;
  const SimulatedStep step = make_chain({.layers = 2}).run(d, {.host = HostMode::kCompute});
  EXPECT_EQ(step.duration, 2 * (60 + 100) + 60 + 2 * 200 + 60);
  EXPECT_EQ(step.ranks[0].figures.comm, 4 * (30 + 30) + 2 * (30 + 60));
}

// On a CPU, the host's work between operators takes cores from communication, as compute does, and
// is slowed by it: each of two transfers of 30 takes 60, in which the host does 40 of its 200.
TEST(SimulatorTest, OnACpuTheHostSharesItsCores) {
  Durations d = durations(100, 0, 30, 30);
  d.issue_operator = 100;
  d.collective_slowdown = 2;
  d.host_slowdown = 1.5;
  const Chain chain = make_chain({.layers = 2});
  const SimulatedStep step = chain.run(d, {.host = HostMode::kCompute});
  EXPECT_EQ(step.duration, 2 * (30 + 100 + 100) + 30 + 2 * (60 + 160) + 30);
  EXPECT_EQ(step.ranks[0].figures.comm, 4 * 30 + 2 * 60);
}

// After the all-gathers that it waits for, not after the one that was already complete.
TEST(SimulatorTest, OnACpuWakingCostsWhereTheHostSlept) {
  Durations d = durations(100, 200, 60, 90);
  const Chain chain = make_chain({.layers = 4});
  const SimulatedStep without = chain.run(d, {.host = HostMode::kCompute});
  d.waking = 7;
  const SimulatedStep step = chain.run(d, {.host = HostMode::kCompute});
  EXPECT_EQ(chain.forward_end(step.ranks[0]), 4 * (60 + 7 + 100));
  // The last layer's all-gather in backward, and what the end of backward waits for.
  EXPECT_EQ(step.duration, without.duration + 4 * 7 + 7 + 7);
  EXPECT_EQ(chain.run(d, kReadsLoss).duration,
            chain.run(durations(100, 200, 60, 90), kReadsLoss).duration);
}

// PyTorch's FSDP over Gloo: each all-gather and reduction is waited for where it is issued, so a
// prefetch hides nothing. A device's streams are not affected.
TEST(SimulatorTest, OnACpuBlockingCollectivesHideNothing) {
  Durations d = durations(100, 200, 60, 90);
  const Chain chain = make_chain({.layers = 4});
  const SimulatedStep before = chain.run(d, {.host = HostMode::kCompute});
  EXPECT_GT(before.ranks[0].figures.overlap, 0);
  d.blocking = true;
  const SimulatedStep step = chain.run(d, {.host = HostMode::kCompute});
  EXPECT_EQ(step.duration, 4 * (60 + 100) + 4 * (60 + 200 + 90));
  EXPECT_EQ(step.ranks[0].figures.overlap, 0);
  // The host wakes up after each collective, and when the last gradient is stored.
  d.waking = 7;
  EXPECT_EQ(chain.run(d, {.host = HostMode::kCompute}).duration, step.duration + (12 + 1) * 7);
  EXPECT_EQ(chain.run(d, kReadsLoss).duration,
            chain.run(durations(100, 200, 60, 90), kReadsLoss).duration);
}

TEST(SimulatorTest, SlowHost) {
  Durations d = durations(100, 200, 60, 90);
  d.issue_operator = 150;
  const Chain chain = make_chain({.layers = 4});
  const SimulatedStep step = chain.run(d);
  EXPECT_EQ(chain.forward_end(step.ranks[0]), 4 * 150 + 100);
  // Backward has two kernels of 100 per layer.
  EXPECT_EQ(step.duration, 4 * 150 + 8 * 150 + 100 + 90);
}

// 100 without and 150 during communication: after 30 of communication, 80 are left.
TEST(SimulatorTest, Interference) {
  Durations d = durations(100, 200, 30, 10);
  d.compute_slowdown = 1.5;
  const Chain chain = make_chain({.layers = 2});
  EXPECT_EQ(chain.forward_end(chain.run(d, kReadsLoss).ranks[0]), 30 + (30 + 80) + 100);
  // Communication during compute takes twice as long: it ends with the layer that it overlaps.
  Durations slow = durations(100, 200, 30, 10);
  slow.collective_slowdown = 2;
  const SimulatedStep step = chain.run(slow, kReadsLoss);
  EXPECT_EQ(chain.forward_end(step.ranks[0]), 30 + 2 * 100);
  EXPECT_EQ(step.ranks[0].figures.comm, 30 + 60 + 30 + 60 + 20 + 10);
}

// Layers of 100 and 200, half as fast during communication, with all-gathers of 30. Forward: by
// copy engines nothing is slower; by kernels the first layer's first 30 take 15 of its work.
// Backward: the reduction of the second layer, 10, slows the first one in both cases.
TEST(SimulatorTest, CopyEnginesDoNotSlowCompute) {
  Durations d = durations(100, 200, 30, 10);
  d.compute_slowdown = 2;
  const Chain chain = make_chain({.layers = 2});
  for (const bool copies : {false, true}) {
    d.copy_engines = copies;
    const SimulatedStep step = chain.run(d, kReadsLoss);
    const Nanoseconds slower = copies ? 0 : 15;
    EXPECT_EQ(chain.forward_end(step.ranks[0]), 30 + 2 * 100 + slower);
    EXPECT_EQ(step.duration - chain.forward_end(step.ranks[0]), 30 + 2 * 200 + slower + 5 + 10);
    EXPECT_EQ(step.ranks[0].figures.comm, 4 * 30 + 2 * 10);
  }
}

TEST(SimulatorTest, RanksThatAreAlikeNeedOneSimulation) {
  for (const char* strategy : {"full_shard", "hybrid_shard", "no_shard"}) {
    Durations d = durations(100, 200, 60, 90);
    d.all_reduce = 70;
    const Chain chain = make_chain({.layers = 3, .strategy = strategy, .ranks = 4});
    const SimulatedStep one = chain.run(d);
    const SimulatedStep each = chain.run(d, {.rank_slowdown = {1, 1, 1, 1}});
    ASSERT_EQ(each.ranks.size(), 4U);
    EXPECT_EQ(each.duration, one.duration);
    for (const SimulatedRank& rank : each.ranks) {
      EXPECT_EQ(rank.figures, one.ranks[0].figures);
      EXPECT_EQ(rank.items, one.ranks[0].items);
    }
  }
}

// All ranks wait for the slowest, whose timeline decides; the others communicate (wait) for longer.
TEST(SimulatorTest, Straggler) {
  const Chain chain = make_chain({.layers = 3, .ranks = 2});
  const SimulatedStep slow = chain.run(durations(200, 400, 60, 90));
  const SimulatedStep both = chain.run(durations(100, 200, 60, 90), {.rank_slowdown = {1, 2}});
  EXPECT_EQ(both.duration, slow.duration);
  EXPECT_EQ(both.ranks[1].figures, slow.ranks[0].figures);
  EXPECT_EQ(both.ranks[0].figures.compute, 3 * 300);
  EXPECT_GT(both.ranks[0].figures.exposed_comm, both.ranks[1].figures.exposed_comm);
}

TEST(SimulatorTest, FiguresDoNotNeedTimes) {
  const Chain chain = make_chain(
      {.layers = 5, .change = [](plan::Plan& plan) { plan.dialect = plan::Dialect::kFsdp1; }});
  Durations d = durations(100, 200, 60, 190);
  d.compute_slowdown = 1.3;
  d.issue_operator = 40;
  d.issue_action = 3;
  for (const HostMode host : {HostMode::kAhead, HostMode::kCompute}) {
    const SimulatedStep with = chain.run(d, {.host = host});
    const SimulatedStep without = chain.run(d, {.host = host, .keep_times = false});
    EXPECT_EQ(with.duration, without.duration);
    EXPECT_EQ(with.ranks[0].figures, without.ranks[0].figures);
    EXPECT_TRUE(without.ranks[0].items.empty());
    const StepFigures& figures = with.ranks[0].figures;
    EXPECT_EQ(figures.compute + figures.exposed_comm + figures.exposed_copy + figures.idle,
              with.duration);
  }
}

// A communicator runs its collectives in issue order, whatever their streams.
TEST(SimulatorTest, CollectivesOfACommunicatorStartInIssueOrder) {
  const Chain chain = make_chain({.layers = 6});
  const SimulatedStep step = chain.run(durations(10, 20, 60, 90));
  Nanoseconds end = 0;
  int collectives = 0;
  for (size_t i = 0; i < chain.step.order.size(); ++i) {
    if (chain.step.order[i].kind != schedule::PlannedItem::Kind::kAction) {
      continue;
    }
    const schedule::Op op = chain.step.actions[chain.step.order[i].index].action.op;
    if (op == schedule::Op::kAllGather || op == schedule::Op::kReduceScatter) {
      const Span& span = step.ranks[0].items[i].stream;
      EXPECT_GE(span.start, end);
      end = span.end;
      ++collectives;
    }
  }
  EXPECT_EQ(collectives, 3 * 6);
}

// The copies from the host are slower than all else and follow each other without a gap: a layer
// runs after its copy, the all-gather and the layers' own time. At the end the host waits for the
// last gradient's copy and steps the optimizer; the GPU is idle meanwhile.
TEST(SimulatorTest, OffloadedParametersComeOverTheLinkAndTheHostSteps) {
  const auto offload = [](plan::Plan& plan) { plan.cpu_offload = true; };
  const Chain chain = make_chain({.layers = 3, .change = offload});
  const Durations durations{.forward = 3,
                            .backward = 4,
                            .all_gather = 2,
                            .reduce_scatter = 5,
                            .link = 10,
                            .on_host = 100};
  const SimulatedStep step = chain.run(durations);
  const SimulatedRank& rank = step.ranks.front();
  EXPECT_EQ(chain.forward_end(rank), 3 * 10 + 2 + 3);
  Nanoseconds last_copy = 0;
  int to_device = 0, to_host = 0;
  for (size_t i = 0; i < chain.step.order.size(); ++i) {
    const schedule::PlannedItem& item = chain.step.order[i];
    if (item.kind != schedule::PlannedItem::Kind::kAction) {
      continue;
    }
    const schedule::Action& action = chain.step.actions[item.index].action;
    if (action.op == schedule::Op::kToHost || action.op == schedule::Op::kToDevice) {
      (action.op == schedule::Op::kToHost ? to_host : to_device) += 1;
      EXPECT_EQ(rank.items[i].stream.end - rank.items[i].stream.start, durations.link);
      last_copy = std::max(last_copy, rank.items[i].stream.end);
    }
  }
  EXPECT_EQ(to_host, 3);
  EXPECT_EQ(to_device, 6);  // in forward and in backward: the last layer is freed between them too
  EXPECT_EQ(step.duration, last_copy + durations.on_host);
  EXPECT_GE(rank.figures.idle, durations.on_host);
}

// Each unit's optimizer runs after its reduce-scatter, on the same stream, concurrently with
// backward. The reductions take longer than the backward of a layer, so the stream never waits, and
// the step ends with the last unit's optimizer. Without the key the whole optimizer comes after the
// last one.
TEST(SimulatorTest, OptimizerInBackwardRunsBehindEachReduction) {
  const Durations durations{
      .forward = 3, .backward = 4, .all_gather = 2, .reduce_scatter = 20, .optimizer = 7};
  const Chain with = make_chain(
      {.layers = 3, .change = [](plan::Plan& plan) { plan.optimizer_in_backward = true; }});
  const SimulatedStep step = with.run(durations);
  const std::vector<ItemTimes>& items = step.ranks.front().items;
  Nanoseconds first_reduction = -1, end = -1;
  std::vector<UnitId> order;
  for (size_t i = 0; i < with.step.order.size(); ++i) {
    if (with.step.order[i].kind != schedule::PlannedItem::Kind::kAction) {
      continue;
    }
    const schedule::Action& action = with.step.actions[with.step.order[i].index].action;
    const Span& span = items[i].stream;
    if (action.op == schedule::Op::kReduceScatter) {
      first_reduction = first_reduction < 0 ? span.start : first_reduction;
      EXPECT_TRUE(end < 0 || span.start == end);
      end = span.end;
    } else if (action.op == schedule::Op::kStep) {
      EXPECT_EQ(span.start, end);
      EXPECT_EQ(span.end - span.start, durations.optimizer);
      end = span.end;
      order.push_back(action.unit);
    }
  }
  EXPECT_EQ(order, (std::vector<UnitId>{3, 2, 1}));
  EXPECT_EQ(end, first_reduction + 3 * (20 + 7));
  EXPECT_EQ(step.duration, end);
  const SimulatedStep without = make_chain({.layers = 3}).run(durations);
  // The communicator runs layer 0's all-gather between two reductions, here without a concurrent
  // optimizer.
  EXPECT_EQ(without.duration, first_reduction + 3 * 20 + durations.all_gather + 7);
}

// Two of three layers are on the host: it does two thirds of the optimizer's work.
TEST(SimulatorTest, OptimizerIsSplitBetweenHostAndDevice) {
  class ByBytes final : public CostModel {
   public:
    [[nodiscard]] Nanoseconds duration(CollectiveKind, int, Bytes) const override { return 0; }
    [[nodiscard]] WorkTime compute(const plan::Operator& op) const override {
      return {op.read + op.written, op.read + op.written};
    }
    [[nodiscard]] Nanoseconds copy(Bytes, Bytes) const override { return 0; }
    [[nodiscard]] Nanoseconds host_copy(Bytes) const override { return 0; }
    [[nodiscard]] bool has_device() const override { return true; }
    [[nodiscard]] Nanoseconds on_host(const plan::Operator& op) const override {
      return 100 * (op.read + op.written);
    }
    [[nodiscard]] Nanoseconds issue(const plan::Operator&) const override { return 0; }
    [[nodiscard]] Nanoseconds issue(schedule::Op) const override { return 0; }
  };
  plan::Operator op;
  op.kind = plan::OperatorKind::kOptimizer;
  op.read = 60;
  op.written = 30;
  EXPECT_EQ(operator_cost(op, 0, ByBytes()).run.alone, 90);
  EXPECT_EQ(operator_cost(op, 0, ByBytes()).issue, 0);
  const OperatorCost split = operator_cost(op, 2.0 / 3, ByBytes());
  EXPECT_EQ(split.run.alone, 30);
  EXPECT_EQ(split.issue, 6000);
  EXPECT_EQ(operator_cost(op, 1, ByBytes()).run.alone, 0);
  EXPECT_EQ(operator_cost(op, 1, ByBytes()).issue, 9000);
}

}  // namespace
}  // namespace shardlens::sim::test
