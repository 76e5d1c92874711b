// Ranks whose models or programs differ, with checks between ranks: every rank fails at once, with
// a message that names unit, parameter and ranks.
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/dist/world.h"
#include "core/fsdp/apply/fully_shard.h"
#include "tests/core/fsdp/chain.h"
#include "tests/support/ranks.h"

namespace shardlens::fsdp {
namespace {

using test::Chain;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kPlan =
    R"({"version": 1, "units": [{"modules": ""}, {"modules": "layers.*"}]})";

// The errors of two ranks, each of which trains a model of `shape(rank)` for `steps(rank)` steps.
std::vector<std::string> train(
    const std::function<test::ChainImpl::Shape(int)>& shape,
    const std::function<int(int)>& steps = [](int) { return 2; }) {
  std::vector<std::string> said(2);
  const auto start = std::chrono::steady_clock::now();
  test::run_ranks(
      2,
      [&](dist::World& world) {
        try {
          Chain model = test::make_chain(shape(world.rank()));
          const auto sharded =
              fully_shard(model.ptr(), plan::parse_plan(kPlan, "test"), {.world = &world});
          for (int step = 0; step < steps(world.rank()); ++step) {
            model(test::seeded({3, model->shape.width}, 7)).pow(2).mean().backward();
            model->zero_grad();
            sharded->optimizer_done();
          }
        } catch (const RuntimeFault& error) {
          said[static_cast<size_t>(world.rank())] = error.what();
        }
      },
      [](dist::WorldOptions& options) { options.check_ranks = true; });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  return said;
}

TEST(CrossRankTest, EqualRanksTrain) {
  EXPECT_THAT(train([](int) { return test::ChainImpl::Shape{}; }), Each(IsEmpty()));
}

TEST(CrossRankTest, ParameterOfAnotherShapeIsNamed) {
  EXPECT_THAT(train([](int rank) { return test::ChainImpl::Shape{.width = 5 + rank}; }),
              Each(AllOf(HasSubstr("rank 0: has parameter 'in.weight' [5, 5] in unit ''"),
                         HasSubstr("rank 1: has parameter 'in.weight' [6, 6] in unit ''"))));
}

TEST(CrossRankTest, AnotherNumberOfUnitsIsNamed) {
  EXPECT_THAT(train([](int rank) { return test::ChainImpl::Shape{.links = 3 + rank}; }),
              Each(AllOf(HasSubstr("in 4 units"), HasSubstr("in 5 units"))));
}

TEST(CrossRankTest, UnitsInAnotherOrderAreNamed) {
  EXPECT_THAT(train([](int rank) {
                return test::ChainImpl::Shape{.calls = rank == 0 ? std::vector<int64_t>{0, 1, 2}
                                                                 : std::vector<int64_t>{1, 0, 2}};
              }),
              Each(AllOf(HasSubstr("rank 0: all_gather of unit 'layers.0'"),
                         HasSubstr("rank 1: all_gather of unit 'layers.1'"))));
}

TEST(CrossRankTest, UnitThatOneRankDoesNotUseIsNamed) {
  EXPECT_THAT(train([](int rank) {
                return test::ChainImpl::Shape{.calls = rank == 0 ? std::vector<int64_t>{0, 1, 2}
                                                                 : std::vector<int64_t>{0, 2}};
              }),
              Each(AllOf(HasSubstr("rank 0: all_gather of unit 'layers.1'"),
                         HasSubstr("rank 1: all_gather of unit 'layers.2'"))));
}

TEST(CrossRankTest, RankWithFewerStepsIsNamed) {
  const auto said = train([](int) { return test::ChainImpl::Shape{}; },
                          [](int rank) { return rank == 0 ? 3 : 2; });
  EXPECT_THAT(said[0], AllOf(HasSubstr("rank 0: all_gather of the root unit"),
                             HasSubstr("rank 1: has left")));
  EXPECT_THAT(said[1], IsEmpty());
}

}  // namespace
}  // namespace shardlens::fsdp
