#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/tree/tree_builder.h"

namespace shardlens::plan {
namespace {

using testing::ElementsAre;

std::vector<std::string> unit_names(const Plan& plan, const ModuleTree& tree) {
  std::vector<std::string> out;
  for (const Unit& unit : resolve(plan, tree, 2).units) {
    out.push_back(unit.fqn);
  }
  return out;
}

std::vector<std::string> names_of(const std::string& units, const ModuleTree& tree) {
  return unit_names(parse_plan(R"({"version": 1, "units": )" + units + "}", "plan.json"), tree);
}

// Keys of a ModuleDict may have any character except a dot.
TEST(ResolveNamesTest, ANameTakesPrecedenceOverTheGlobThatItCouldBe) {
  TreeBuilder builder("Model");
  const uint32_t odd = builder.module(0, "*", "ModuleDict");
  for (const std::string name : {"*", "class:Block", "q"}) {
    const uint32_t block = builder.module(odd, name, "Block");
    builder.parameter(block, "weight", {2, 2});
    builder.block(block);
  }
  builder.parameter(builder.module(builder.module(0, "other", "ModuleList"), "0", "Linear"),
                    "weight", {2});
  const ModuleTree tree = builder.take();
  EXPECT_THAT(names_of(R"([{"modules": "*.*"}, {"modules": ""}])", tree), ElementsAre("", "*.*"));
  EXPECT_THAT(names_of(R"([{"modules": ["*.class:Block"]}, {"modules": ""}])", tree),
              ElementsAre("", "*.class:Block"));
  EXPECT_THAT(unit_names(strategy_plan("full_shard", tree), tree),
              ElementsAre("", "*.*", "*.class:Block", "*.q"));
}

}  // namespace
}  // namespace shardlens::plan
