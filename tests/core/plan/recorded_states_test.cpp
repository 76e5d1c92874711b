// What an optimizer keeps, as a recorded run has it for an element of each parameter. Sizes by
// hand.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/resolve.h"
#include "core/plan/unit_sizes.h"
#include "core/tree/tree_builder.h"
#include "tests/core/plan/resolved.h"

namespace shardlens::plan {
namespace {

using test::resolved;

// Linear layers without a bias, but for the first one.
ModuleTree linears(const std::vector<std::string>& names, int64_t in, int64_t out) {
  TreeBuilder builder("Linears");
  for (const std::string& name : names) {
    builder.linear(0, name, in, out, name == "first");
  }
  return builder.take();
}

constexpr const char* kWithPerParameter = R"(, "layout": "per_parameter")";

TEST(RecordedStatesTest, OfARankFollowItsPartsOfTheParameters) {
  ModuleTree tree = linears({"first"}, 4, 5);  // weight of 5 x 4, bias of 5
  tree.parameters[0].state_bytes = 2.5;
  tree.parameters[1].state_bytes = 8;
  // Rank 0 has three of five rows.
  const UnitSize two = unit_sizes(resolved(R"([{"modules": ""}])", 2, tree, kWithPerParameter))[0];
  EXPECT_EQ(two.states, 30 + 24);
  EXPECT_EQ(two.optimizer_states(2, DType::kF32), 30 + 24);
  const UnitSize one = unit_sizes(resolved(R"([{"modules": ""}])", 1, tree, kWithPerParameter))[0];
  EXPECT_EQ(one.states, 50 + 40);
  // In bf16 the optimizer's states are half as large.
  const std::string bf16 = std::string(kWithPerParameter) + R"(, "dtype": "bf16")";
  EXPECT_EQ(unit_sizes(resolved(R"([{"modules": ""}])", 1, tree, bf16))[0].states, 25 + 20);
}

TEST(RecordedStatesTest, OfADamagedFileFitInSixtyFourBits) {
  ModuleTree tree = linears({"first"}, 4, 5);
  tree.parameters[0].state_bytes = 1e30;
  EXPECT_EQ(unit_sizes(resolved(R"([{"modules": ""}])", 1, tree, kWithPerParameter))[0].states,
            Bytes{1} << 50);
}

TEST(RecordedStatesTest, WithoutThemTheOptimizersKindDecides) {
  const UnitSize size = unit_sizes(
      resolved(R"([{"modules": ""}])", 2, linears({"first"}, 4, 5), kWithPerParameter))[0];
  EXPECT_FALSE(size.states.has_value());
  EXPECT_EQ(size.optimizer_states(2, DType::kF32), 2 * 4 * (12 + 3));
  EXPECT_EQ(size.optimizer_states(0, DType::kF32), 0);
}

// Units that are alike but for what the optimizer keeps have sizes of their own.
TEST(RecordedStatesTest, AlikeUnitsMayKeepOtherStates) {
  ModuleTree tree = linears({"a", "b"}, 4, 4);
  tree.parameters[0].state_bytes = 4;
  tree.parameters[1].state_bytes = 0;
  const auto sizes = unit_sizes(resolved(R"([{"modules": ""}, {"modules": "a"}, {"modules": "b"}])",
                                         2, tree, kWithPerParameter));
  EXPECT_EQ(sizes[1].states, 32);
  EXPECT_EQ(sizes[2].states, 0);
}

}  // namespace
}  // namespace shardlens::plan
