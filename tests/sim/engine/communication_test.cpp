// Times of steps with communication of the workload, worked out by hand. A chain of two layers with
// forward c = 100 and backward 200 each, whose own collectives take no time: 600 without
// communication. Communication is all-reduces of x in the forward of the first layer.
#include <algorithm>

#include <gtest/gtest.h>

#include "core/schedule/planned/steady_step.h"
#include "sim/engine/repeated.h"
#include "tests/core/workload/with_communication.h"
#include "tests/sim/engine/chain.h"

namespace shardlens::sim::test {
namespace {

using plan::Phase;
using plan::WorkloadItem;
using schedule::PlannedItem;
using shardlens::test::insert_communication;
using shardlens::test::position_of;

constexpr Nanoseconds kAlone = 600;
constexpr mesh::GroupId kContextGroup = 2;

constexpr mesh::GroupId kOtherGroup = 3;

// Over four ranks, in two groups along `context`, and two others that no unit uses either.
Chain two_layers(int accumulate = 1) {
  Chain out = make_chain(
      {.layers = 2, .ranks = 4, .accumulate = accumulate, .change = [](plan::Plan& plan) {
         plan.mesh.context = 2;
       }});
  out.plan.groups.push_back({.name = "other", .size = 2, .stride = 2});
  return out;
}

// An all-reduce after the forward operator of the first layer.
plan::Communication all_reduce(const Chain& of, mesh::GroupId group = kContextGroup) {
  plan::Communication out;
  out.group = group;
  out.unit = of.workload.operators[0].unit;
  out.bytes = 4096;
  return out;
}

WorkloadItem insert(Chain& into, const plan::Communication& each) {
  return insert_communication(into.workload, position_of(into.workload, Phase::kForward, 0) + 1,
                              each);
}

void plan_again(Chain& chain) {
  chain.step = schedule::planned_step(chain.workload, chain.plan, 3, chain.microbatches);
}

// The forward operator of a layer, or what comes after all of them.
WorkloadItem forward_of(const Chain& chain, int layer) {
  return chain.workload.order[position_of(chain.workload, Phase::kForward, layer)];
}

Nanoseconds duration(const Chain& chain, Nanoseconds x, const SimulationOptions& options = {}) {
  return chain.run({.forward = 100, .backward = 200, .all_reduce = x}, options).duration;
}

Span span_of(const Chain& chain, const SimulatedStep& step, size_t rank, uint32_t index) {
  for (size_t i = 0; i < chain.step.order.size(); ++i) {
    if (chain.step.order[i] == PlannedItem{PlannedItem::Kind::kCommunication, index}) {
      return step.ranks[rank].items[i].stream;
    }
  }
  return {};
}

TEST(CommunicationTest, ComputeWaitsForItAtOnce) {
  Chain one = two_layers();
  ASSERT_EQ(one.plan.groups.at(kContextGroup).name, "context");
  EXPECT_EQ(duration(one, 40), kAlone);
  const uint32_t index = insert(one, all_reduce(one)).index;
  plan_again(one);
  EXPECT_EQ(duration(one, 40), kAlone + 40);
  EXPECT_EQ(duration(one, 40, {.host = HostMode::kCompute}), kAlone + 40);
  const SimulatedStep step = one.run({.forward = 100, .backward = 200, .all_reduce = 40});
  EXPECT_EQ(span_of(one, step, 0, index), (Span{100, 140}));
  EXPECT_EQ(step.ranks[0].figures.exposed_comm, 40);
}

// The layer that comes next takes 100 and does not wait.
TEST(CommunicationTest, ALaterWaitHidesIt) {
  Chain one = two_layers();
  plan::Communication each = all_reduce(one);
  each.waited_by = one.workload.order[position_of(one.workload, Phase::kBackward, 0)];
  insert(one, each);
  plan_again(one);
  for (const HostMode host : {HostMode::kAhead, HostMode::kCompute}) {
    EXPECT_EQ(duration(one, 40, {.host = host}), kAlone);
    EXPECT_EQ(duration(one, 130, {.host = host}), kAlone + 30);
  }
}

// The host issues the next operator, which takes it 10, only after the all-reduce.
TEST(CommunicationTest, TheHostReadsItsResult) {
  const Durations times{.forward = 100, .backward = 200, .all_reduce = 40, .issue_operator = 10};
  const auto with = [&](bool read_by_host) {
    Chain one = two_layers();
    plan::Communication each = all_reduce(one);
    each.read_by_host = read_by_host;
    insert(one, each);
    plan_again(one);
    return one.run(times).duration;
  };
  EXPECT_EQ(with(true), with(false) + 10);
}

// FSDP's own collectives may be waited for where they are issued: those of the program are waited
// for where the program does.
TEST(CommunicationTest, HidesWhereThoseOfUnitsDoNot) {
  Chain one = two_layers();
  plan::Communication each = all_reduce(one);
  each.waited_by = one.workload.order[position_of(one.workload, Phase::kBackward, 0)];
  insert(one, each);
  plan_again(one);
  const Durations blocking{.forward = 100, .backward = 200, .all_reduce = 40, .blocking = true};
  EXPECT_EQ(one.run(blocking, {.host = HostMode::kCompute}).duration, kAlone);
}

// What is waited for before a hook is waited for before that hook's own actions.
TEST(CommunicationTest, AHookMayWait) {
  Chain one = two_layers();
  plan::Communication each = all_reduce(one);
  const auto hook = std::ranges::find_if(one.workload.hooks, [](const HookEvent& event) {
    return event.hook == Hook::kPreForward && event.unit == 2;
  });
  each.waited_by = WorkloadItem{WorkloadItem::Kind::kHook,
                                static_cast<uint32_t>(hook - one.workload.hooks.begin())};
  insert(one, each);
  plan_again(one);
  EXPECT_EQ(duration(one, 40), kAlone + 40);
}

TEST(CommunicationTest, OneGroupQueuesAndTwoOverlap) {
  for (const bool one_group : {true, false}) {
    Chain two = two_layers();
    plan::Communication each = all_reduce(two);
    each.waited_by = two.workload.order[position_of(two.workload, Phase::kBackward, 0)];
    const uint32_t first = insert(two, each).index;
    each.group = one_group ? kContextGroup : kOtherGroup;
    const uint32_t second =
        insert_communication(two.workload, position_of(two.workload, Phase::kForward, 0) + 2, each)
            .index;
    plan_again(two);
    for (const HostMode host : {HostMode::kAhead, HostMode::kCompute}) {
      const SimulatedStep step =
          two.run({.forward = 100, .backward = 200, .all_reduce = 70}, {.host = host});
      EXPECT_EQ(step.duration, one_group ? kAlone + 40 : kAlone);
      EXPECT_EQ(span_of(two, step, 0, first), (Span{100, 170}));
      EXPECT_EQ(span_of(two, step, 0, second), one_group ? (Span{170, 240}) : (Span{100, 170}));
    }
  }
}

// Two all-reduces of 70 over the same links from 100 on, of which `latency` need no link: each
// moves the rest at half the rate. Compute, which ends forward at 200, waits for both.
TEST(CommunicationTest, GroupsThatRunAtOnceShareTheLinks) {
  for (const Nanoseconds latency : {0, 20, 70}) {
    Chain two = two_layers();
    plan::Communication each = all_reduce(two);
    each.waited_by = two.workload.order[position_of(two.workload, Phase::kBackward, 0)];
    const uint32_t first = insert(two, each).index;
    each.group = kOtherGroup;
    const uint32_t second =
        insert_communication(two.workload, position_of(two.workload, Phase::kForward, 0) + 2, each)
            .index;
    plan_again(two);
    const SimulatedStep step = two.run({.forward = 100,
                                        .backward = 200,
                                        .all_reduce = 70,
                                        .shares_links = true,
                                        .latency = latency});
    const Nanoseconds end = 100 + latency + 2 * (70 - latency);
    EXPECT_EQ(span_of(two, step, 0, first), (Span{100, end})) << latency;
    EXPECT_EQ(span_of(two, step, 0, second), (Span{100, end})) << latency;
    EXPECT_EQ(step.duration, kAlone + std::max<Nanoseconds>(0, end - 200)) << latency;
  }
}

// All-gathers of units take 50 here, a layer's forward 20. The host issues the second layer's
// all-gather after the communication. In another group it runs at once, from 50 to 100, so that
// forward ends at 120. In the same group it runs after the communication, from 80 to 130.
TEST(CommunicationTest, CollectivesOfUnitsQueueBehindIt) {
  for (const bool same : {true, false}) {
    Chain one = two_layers();
    const uint32_t index =
        insert(one, all_reduce(one, same ? plan::kShardGroup : kContextGroup)).index;
    plan_again(one);
    const SimulatedStep step =
        one.run({.forward = 20, .backward = 40, .all_gather = 50, .all_reduce = 10});
    EXPECT_EQ(span_of(one, step, 0, index), (Span{70, 80}));
    EXPECT_EQ(one.forward_end(step.ranks[0]), same ? 150 : 120);
  }
}

// Rank 2 computes at half the speed. It is in a group along `context` with rank 3, whose
// communication starts when rank 2 reaches it.
TEST(CommunicationTest, ASlowRankDelaysItsGroup) {
  Chain one = two_layers();
  const uint32_t index = insert(one, all_reduce(one)).index;
  plan_again(one);
  SimulationOptions slow;
  slow.rank_slowdown = {1, 1, 2, 1};
  const SimulatedStep step = one.run({.forward = 100, .backward = 200, .all_reduce = 40}, slow);
  EXPECT_EQ(span_of(one, step, 0, index).end, 140);
  EXPECT_EQ(span_of(one, step, 1, index).end, 140);
  EXPECT_EQ(span_of(one, step, 2, index).end, 240);
  EXPECT_EQ(span_of(one, step, 3, index).end, 240);
  EXPECT_EQ(step.duration, 2 * kAlone + 40);
}

// Its host time is that of a unit's collective.
TEST(CommunicationTest, TheHostIssuesIt) {
  Chain one = two_layers();
  const PricedStep before = one.priced({.issue_collective = 7});
  insert(one, all_reduce(one));
  plan_again(one);
  const PricedStep after = one.priced({.issue_collective = 7});
  ASSERT_EQ(after.costs->communications.size(), 1U);
  EXPECT_EQ(after.costs->communications[0].issue, 7);
  EXPECT_EQ(simulate(after, {.host = HostMode::kCompute}).duration -
                simulate(before, {.host = HostMode::kCompute}).duration,
            7);
}

// The host's time before the wait passes while the communication runs.
TEST(CommunicationTest, TheHostsTimeBeforeTheWait) {
  Chain one = two_layers();
  insert(one, all_reduce(one));
  plan_again(one);
  const PricedStep priced = one.priced({.forward = 100, .backward = 200, .all_reduce = 40});
  StepCosts costs = *priced.costs;
  for (const Nanoseconds time : {30, 55}) {
    costs.communications[0].before_wait = time;
    const PricedStep with = PricedStep::borrowed(one.workload, one.plan, one.step, costs);
    EXPECT_EQ(simulate(with, {.host = HostMode::kCompute}).duration,
              kAlone + std::max<Nanoseconds>(40, time));
  }
}

// Each microbatch has the communication and its wait; a step of many is that of a few and more of
// the same.
TEST(CommunicationTest, InEveryMicrobatch) {
  for (const bool later : {false, true}) {
    Chain four = two_layers(4);
    plan::Communication each = all_reduce(four);
    if (later) {
      each.waited_by = forward_of(four, 1);
    }
    insert(four, each);
    plan_again(four);
    const Durations d{.forward = 100, .backward = 200, .all_reduce = 40};
    SimulatedStep all = four.run(d);
    EXPECT_EQ(all.duration, 4 * (kAlone + 40));
    SimulationOptions repeated{.keep_times = false};
    repeated.repeated = repeated_microbatches(four.step);
    ASSERT_TRUE(repeated.repeated);
    EXPECT_EQ(four.run(d, repeated).duration, all.duration);
    SimulationOptions more;
    more.more_microbatches = 3;
    const SimulatedStep seven = four.run(d, more);
    ASSERT_TRUE(seven.alike);
    EXPECT_EQ(seven.duration, 7 * (kAlone + 40));
  }
}

}  // namespace
}  // namespace shardlens::sim::test
