// Ranks whose operators take unequal times, worked out by hand. A chain of two layers with forward
// 100 and backward 200 each, over four ranks in two groups along `context`; an all-to-all of 40 is
// between the layers' forwards, and no other collective takes time.
#include "sim/engine/rank_costs.h"

#include <gtest/gtest.h>

#include "core/schedule/planned/planned.h"
#include "tests/core/workload/with_communication.h"
#include "tests/sim/engine/chain.h"

namespace shardlens::sim::test {
namespace {

using plan::Phase;
using shardlens::test::insert_communication;
using shardlens::test::position_of;

constexpr mesh::GroupId kOverContext = 2;
constexpr Durations kUneven{.forward = 100, .backward = 200, .wide_forward = 250, .all_reduce = 40};

Chain with_exchange() {
  Chain out = make_chain(
      {.layers = 2, .ranks = 4, .change = [](plan::Plan& plan) { plan.mesh.context = 2; }});
  plan::Communication exchange;
  exchange.kind = CollectiveKind::kAllToAll;
  exchange.purpose = Purpose::kTokens;
  exchange.group = kOverContext;
  exchange.unit = out.workload.operators[0].unit;
  exchange.bytes = 4096;
  insert_communication(out.workload, position_of(out.workload, Phase::kForward, 0) + 1, exchange);
  out.step = schedule::planned_step(out.workload, out.plan, 3, out.microbatches);
  return out;
}

plan::Operator& forward_of_layer(plan::Workload& workload, int layer) {
  return workload.operators[workload.order[position_of(workload, Phase::kForward, layer)].index];
}

std::vector<RankWorkload> four(const Chain& chain) {
  return std::vector<RankWorkload>(4, RankWorkload{chain.workload, {}});
}

SimulatedStep simulated(const Chain& chain, std::vector<RankWorkload> of_ranks) {
  return simulate(priced_step(chain.workload, chain.plan, chain.step, DecreedCosts(kUneven),
                              std::move(of_ranks)));
}

// The first layer's forward of rank 2 takes 250: its peer in the all-to-all, rank 3, waits 150.
// Ranks 0 and 1 wait as long for both where all ranks come together next.
TEST(RankCostsTest, RanksWaitForTheSlowest) {
  const Chain chain = with_exchange();
  std::vector<RankWorkload> of_ranks = four(chain);
  forward_of_layer(of_ranks[2].workload, 0).k = kWideWidth;
  const SimulatedStep step = simulated(chain, of_ranks);
  ASSERT_EQ(step.ranks.size(), 4U);
  EXPECT_EQ(step.duration, 600 + 40 + 150);
  EXPECT_EQ(step.ranks[2].figures.compute, 750);
  EXPECT_EQ(step.ranks[3].figures.compute, 600);
  EXPECT_GE(step.ranks[3].waited, 150);
  EXPECT_GE(step.ranks[0].waited, 150);
  EXPECT_EQ(step.ranks[2].waited, 0);
  EXPECT_EQ(simulated(chain, {}).ranks.size(), 1U);
  EXPECT_EQ(simulated(chain, {}).duration, 640);
}

// A rank that runs an operator more between the same communication has the time of both where the
// workload has one.
TEST(RankCostsTest, OtherNumbersOfOperatorsAreAddedUp) {
  const Chain chain = with_exchange();
  plan::Workload more = chain.workload;
  const size_t at = position_of(more, Phase::kForward, 0);
  more.operators.push_back(forward_of_layer(more, 0));
  const auto added = static_cast<uint32_t>(more.operators.size() - 1);
  more.order.insert(more.order.begin() + static_cast<std::ptrdiff_t>(at),
                    {plan::WorkloadItem::Kind::kOperator, added});
  std::vector<RankWorkload> of_ranks = four(chain);
  of_ranks[1].workload = more;
  const std::vector<RankCosts> costs =
      rank_costs(chain.workload, of_ranks, chain.plan, DecreedCosts(kUneven));
  const size_t forward =
      chain.workload.order[position_of(chain.workload, Phase::kForward, 0)].index;
  ASSERT_EQ(costs.size(), 4U);
  EXPECT_EQ(costs[0].operators[forward].run.alone, 100);
  EXPECT_EQ(costs[1].operators[forward].run.alone, 200);
  EXPECT_EQ(costs[1].sums.back().alone - costs[0].sums.back().alone, 100);
}

// Over the links of rings of 100 GB/s an all-to-all takes as long as the largest message of a rank
// of its group.
TEST(RankCostsTest, TheLargestMessageOfAGroupCounts) {
  class ByBytes final : public CostModel {
   public:
    [[nodiscard]] Nanoseconds duration(CollectiveKind, int, Bytes bytes) const override {
      return bytes;
    }
    [[nodiscard]] WorkTime compute(const plan::Operator&) const override { return {}; }
    [[nodiscard]] Nanoseconds copy(Bytes, Bytes) const override { return 0; }
    [[nodiscard]] Nanoseconds host_copy(Bytes) const override { return 0; }
    [[nodiscard]] Nanoseconds issue(const plan::Operator&) const override { return 0; }
    [[nodiscard]] Nanoseconds issue(schedule::Op) const override { return 0; }
  };
  const Chain chain = with_exchange();
  std::vector<RankWorkload> of_ranks = four(chain);
  of_ranks[1].workload.communications[0].bytes = 9000;
  of_ranks[2].workload.communications[0].bytes = 100;
  const std::vector<RankCosts> costs = rank_costs(chain.workload, of_ranks, chain.plan, ByBytes());
  EXPECT_EQ(costs[0].communications[0].run.run.alone, 9000);
  EXPECT_EQ(costs[1].communications[0].run.run.alone, 9000);
  EXPECT_EQ(costs[2].communications[0].run.run.alone, 4096);  // of rank 3
  EXPECT_EQ(costs[3].communications[0].run.run.alone, 4096);
}

TEST(RankCostsTest, TheOrderOfRanksIsCompared) {
  const Chain chain = with_exchange();
  plan::Workload other = chain.workload;
  other.communications[0].bytes = 1;
  forward_of_layer(other, 0).k = kWideWidth;
  EXPECT_TRUE(same_order(chain.workload, other));
  other.communications[0].kind = CollectiveKind::kAllReduce;
  EXPECT_FALSE(same_order(chain.workload, other));
  other = chain.workload;
  other.hooks.back().unit += 1;
  EXPECT_FALSE(same_order(chain.workload, other));
}

}  // namespace
}  // namespace shardlens::sim::test
