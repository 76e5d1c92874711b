#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/plan/resolve.h"
#include "core/plan/unit_sizes.h"
#include "tests/core/plan/resolved.h"

namespace shardlens::plan {
namespace {

using test::kBlocksAndRoot;
using test::llama;
using test::resolved;
using testing::AllOf;
using testing::HasSubstr;

// torchao's float8 all-gathers: a byte for each weight of a linear layer in a block with sizes that
// are multiples of 16; two for others, norms, and embedding and head, which are in no block. 4
// ranks divide each first dimension.
TEST(GatherDtypeTest, Float8GathersCarryTheLinearLayersOfBlocks) {
  const ModuleTree tree = llama();
  const auto sizes = [&](const std::string& layout, const std::string& gather) {
    const ResolvedPlan plan =
        resolved(kBlocksAndRoot, 4, tree,
                 R"(, "layout": ")" + layout + R"(", "mixed_precision": {"param_dtype": "bf16")" +
                     gather + "}");
    std::vector<UnitSize> out = unit_sizes(plan);
    for (UnitId id = 0; id < out.size(); ++id) {
      EXPECT_EQ(unit_messages(plan, id, out[id]).all_gather, out[id].unsharded);
      Bytes saved = 0;
      for (const uint32_t parameter : plan.units[id].parameters) {
        const Parameter& each = tree.parameters[parameter];
        const bool sent = !gather.empty() && each.fqn.find("_proj.") != std::string::npos &&
                          std::ranges::all_of(each.shape, [](int64_t n) { return n % 16 == 0; });
        saved += sent ? each.numel : 0;
      }
      EXPECT_EQ(out[id].float8, saved);
    }
    return out;
  };
  for (const char* layout : {"per_parameter", "flat"}) {
    const std::vector<UnitSize> bf16 = sizes(layout, "");
    const std::vector<UnitSize> float8 = sizes(layout, R"(, "gather_dtype": "float8_e4m3fn")");
    EXPECT_EQ(float8[0].unsharded, bf16[0].unsharded);
    EXPECT_GT(float8[1].float8, 0);
    for (UnitId id = 0; id < bf16.size(); ++id) {
      EXPECT_EQ(float8[id].unsharded, bf16[id].unsharded - float8[id].float8) << layout;
      EXPECT_EQ(float8[id].sharded, bf16[id].sharded);
      EXPECT_EQ(float8[id].reduced, bf16[id].reduced);
    }
  }
}

TEST(GatherDtypeTest, OnlyFsdp2GathersFloat8) {
  const ModuleTree tree = llama();
  const std::string gather = R"("mixed_precision": {"gather_dtype": "float8_e4m3fn"})";
  for (const auto& [units, keys, place] :
       {std::tuple{std::string(kBlocksAndRoot), ", \"dialect\": \"fsdp1\", " + gather,
                   "plan.json#/mixed_precision/gather_dtype"},
        {R"([{"modules": "model.layers.*", "api": "replicate", )" + gather +
             R"(}, {"modules": ""}])",
         "", "plan.json#/units/0/mixed_precision/gather_dtype"}}) {
    try {
      (void)resolved(units, 4, tree, keys);
      ADD_FAILURE() << "accepted " << units << keys;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(place), HasSubstr("only all-gathers of FSDP2")));
    }
  }
}

}  // namespace
}  // namespace shardlens::plan
