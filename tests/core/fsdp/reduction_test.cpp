// Gradients over two mesh axes and with a divisor set by the user, compared with one process that
// has all ranks' data.
#include "core/fsdp/unit/reduction.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>

#include "core/fsdp/apply/fully_shard.h"
#include "core/fsdp/apply/sharded_unit.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Chain;
using test::make_chain;
using test::seeded;

constexpr int kMicrobatches = 2;

at::Tensor input(int rank, int microbatch) {
  return seeded({2, 5}, static_cast<uint64_t>(10 * rank + microbatch + 1));
}

plan::Plan reduction_plan_of(const std::string& more) {
  return plan::parse_plan(
      R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}], )" + more + "}",
      "test");
}

// Gradients summed over all ranks' microbatches, by FQN, flattened.
std::map<std::string, at::Tensor> summed_gradients(int ranks) {
  Chain whole = make_chain({});
  for (int rank = 0; rank < ranks; ++rank) {
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      whole(input(rank, microbatch)).sum().backward();
    }
  }
  std::map<std::string, at::Tensor> gradients;
  for (const auto& each : whole->named_parameters()) {
    gradients[each.key()] = each.value().grad().flatten();
  }
  return gradients;
}

// `all_reduce_last`: the earlier microbatches are reduced over the shard axis only.
void expect_gradients(int ranks,
                      const std::string& settings,
                      double divisor,
                      bool all_reduce_last = false) {
  SCOPED_TRACE(settings);
  const auto expected = summed_gradients(ranks);
  test::run_ranks(ranks, [&](dist::World& world) {
    Chain model = make_chain({});
    const auto sharded = fully_shard(model.ptr(), reduction_plan_of(settings),
                                     {.world = &world, .check_ledger = true});
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      if (all_reduce_last) {
        ShardedUnit(model.ptr()).set_requires_all_reduce(microbatch + 1 == kMicrobatches);
      }
      model(input(world.rank(), microbatch)).sum().backward();
    }
    const auto parameters = model->named_parameters();
    int64_t compared = 0;
    for (const ParameterSlice& slice : sharded->slices()) {
      const std::string& fqn = sharded->plan().tree.parameters[slice.parameter].fqn;
      const at::Tensor found = parameters[fqn].grad();
      const at::Tensor wanted =
          expected.at(fqn).narrow(0, slice.offset, slice.values.numel()).div(divisor);
      EXPECT_TRUE(at::allclose(found, wanted, 1e-5, 1e-6)) << fqn;
      ++compared;
    }
    EXPECT_GT(compared, 0);
  });
}

TEST(ReductionTest, EveryLayoutAndMeshAverages) {
  for (const std::string layout : {"flat", "per_parameter"}) {
    const std::string key = R"("layout": ")" + layout + "\"";
    expect_gradients(3, key, 3);  // neither 5 nor 7 rows divide by three
    expect_gradients(4, key + R"(, "mesh": {"replicate": 2})", 4);
    expect_gradients(4, key + R"(, "reshard_after_forward": 2)", 4);
    expect_gradients(2, key + R"(, "mesh": {"shard": 1})", 2);
  }
  expect_gradients(3, R"("dialect": "fsdp1")", 3);
  expect_gradients(4, R"("dialect": "fsdp1", "mesh": {"replicate": 2})", 4);
}

TEST(ReductionTest, AllReduceOfTheLastMicrobatchTakesTheSumOfAll) {
  for (const std::string layout : {"flat", "per_parameter"}) {
    expect_gradients(4, R"("mesh": {"replicate": 2}, "layout": ")" + layout + "\"", 4,
                     /*all_reduce_last=*/true);
  }
}

TEST(ReductionTest, DivideFactorTakesThePlaceOfTheRanks) {
  expect_gradients(2, R"("gradient_divide_factor": 3)", 3);
  expect_gradients(2, R"("gradient_divide_factor": 2)", 2);
  expect_gradients(4, R"("gradient_divide_factor": 3, "mesh": {"replicate": 2})", 3);
  // Equal to the size of the shard axis: averaged there, summed over replicas, as in PyTorch.
  expect_gradients(4, R"("gradient_divide_factor": 2, "mesh": {"replicate": 2})", 2);
  expect_gradients(1, R"("gradient_divide_factor": 4)", 4);
}

// Divisors as PyTorch 2.11 chose them in recorded runs.
TEST(ReductionTest, Fsdp1AndFp16DivideInTwoHalves) {
  const struct {
    int64_t ranks;
    double before, after;
  } rows[] = {{1, 1, 1},   {2, 2, 1}, {3, 2, 1.5}, {4, 2, 2},  {5, 2, 2.5}, {6, 4, 1.5},
              {7, 2, 3.5}, {8, 4, 2}, {16, 4, 4},  {32, 8, 4}, {64, 8, 8}};
  for (const auto& row : rows) {
    plan::ResolvedPlan plan;
    plan.world_size = plan.groups[plan::kShardGroup].size = row.ranks;
    plan.units.resize(1);
    plan.units[0].mixed_precision.reduce_dtype = DType::kF16;
    for (const plan::Dialect dialect : {plan::Dialect::kFsdp1, plan::Dialect::kFsdp2}) {
      plan.plan.dialect = dialect;
      const Reduction reduction = reduction_of(plan, 0);
      EXPECT_EQ(reduction.before, row.before) << row.ranks;
      EXPECT_EQ(reduction.after, row.after) << row.ranks;
      EXPECT_FALSE(reduction.average_shard || reduction.average_replicate);
    }
  }
}

}  // namespace
}  // namespace shardlens::fsdp
