#include "core/workload/merged_units.h"

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "core/model/step_workload.h"
#include "core/plan/grouped_blocks.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

// Gemma's blocks differ in their windows.
ModelConfig config(const std::string& type) {
  const std::string more =
      type == "gemma2" ? R"("query_pre_attn_scalar": 16, "sliding_window": 4, "head_dim": 16,)"
                       : "";
  return parse_model_config(R"({"model_type": ")" + type + "\"," + more +
                                R"("hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2,
          "vocab_size": 100, "max_position_embeddings": 32})",
                            "seven blocks");
}

ResolvedPlan plan_of(const ModelConfig& config, size_t together, bool checkpointed) {
  const ModuleTree tree = module_tree(config);
  Plan plan;
  plan.units = grouped_blocks(tree, together);
  if (checkpointed) {
    plan.activation_checkpointing = {"model.layers.*"};
  }
  return resolve(plan, tree, 4);
}

TEST(MergedUnitsTest, EqualsTheWorkloadOfTheLargerUnits) {
  for (const char* type : {"llama", "gemma2"}) {
    const ModelConfig of = config(type);
    for (const bool checkpointed : {false, true}) {
      ResolvedPlan fine = plan_of(of, 1, checkpointed);
      Workload workload = step_workload(of, fine, {.batch = 1, .seq = 8});
      for (const size_t together : {2, 4, 0}) {  // with blocks left over for the root
        const ResolvedPlan coarse = plan_of(of, together, checkpointed);
        const std::optional<Workload> merged = merge_units(workload, fine, coarse);
        ASSERT_TRUE(merged) << type << " " << together;
        EXPECT_EQ(*merged, step_workload(of, coarse, {.batch = 1, .seq = 8}))
            << type << " " << together;
        fine = coarse;
        workload = *merged;
      }
    }
  }
}

// What is frozen decides which units have hooks in backward.
TEST(MergedUnitsTest, NotWithFrozenParameters) {
  ModelConfig of = config("llama");
  of.lora = {.rank = 4, .targets = {"q_proj"}};
  const ResolvedPlan fine = plan_of(of, 1, false), coarse = plan_of(of, 2, false);
  EXPECT_FALSE(merge_units(step_workload(of, fine, {.batch = 1, .seq = 8}), fine, coarse));
}

// The second block's first hook is left out, so what was to wait before it waits before the block's
// first operator.
TEST(MergedUnitsTest, CommunicationKeepsItsPlace) {
  const ModelConfig of = config("llama");
  const ResolvedPlan fine = plan_of(of, 1, false), coarse = plan_of(of, 2, false);
  Workload workload = step_workload(of, fine, {.batch = 1, .seq = 8});
  const auto hook_at = [&workload](Hook hook, UnitId unit) {
    return std::ranges::find_if(workload.order, [&](const WorkloadItem& item) {
      return item.kind == WorkloadItem::Kind::kHook && workload.hooks[item.index].hook == hook &&
             workload.hooks[item.index].unit == unit;
    });
  };
  const auto second = hook_at(Hook::kPreForward, 2), third = hook_at(Hook::kPreForward, 3);
  Communication each;
  each.group = kShardGroup;
  each.unit = 2;
  each.waited_by = *second;
  const WorkloadItem first_operator = *(second + 1);
  ASSERT_EQ(first_operator.kind, WorkloadItem::Kind::kOperator);
  const HookEvent third_hook = workload.hooks[third->index];
  workload.communications = {each, each};
  workload.communications[1].waited_by = *third;
  const size_t before = static_cast<size_t>(second - workload.order.begin()) - 1;
  for (const uint32_t index : {0U, 1U}) {
    workload.order.insert(workload.order.begin() + static_cast<std::ptrdiff_t>(before),
                          {WorkloadItem::Kind::kCommunication, index});
  }
  const std::optional<Workload> merged = merge_units(workload, fine, coarse);
  ASSERT_TRUE(merged);
  EXPECT_EQ(
      std::ranges::count(merged->order, WorkloadItem::Kind::kCommunication, &WorkloadItem::kind),
      2);
  EXPECT_EQ(merged->communications[0].unit, 1U);
  EXPECT_EQ(merged->communications[0].waited_by, first_operator);
  ASSERT_EQ(merged->communications[1].waited_by->kind, WorkloadItem::Kind::kHook);
  const HookEvent& waits = merged->hooks[merged->communications[1].waited_by->index];
  EXPECT_EQ(waits.hook, third_hook.hook);
  EXPECT_EQ(waits.unit, 2U);
}

TEST(MergedUnitsTest, UnitsThatAreNotMergedAreNone) {
  const ModelConfig of = config("llama");
  const ResolvedPlan two = plan_of(of, 2, false), three = plan_of(of, 3, false);
  const Workload workload = step_workload(of, two, {.batch = 1, .seq = 8});
  EXPECT_FALSE(merge_units(workload, two, plan_of(of, 1, false)));
  EXPECT_FALSE(merge_units(workload, two, three));
}

// Attention is a unit of its own within a checkpointed block, so its hooks run again.
TEST(MergedUnitsTest, HooksThatRunAgainAreNone) {
  const ModelConfig of = config("llama");
  const ModuleTree tree = module_tree(of);
  Plan plan;
  plan.units = {{.globs = {"model.layers.*.self_attn"}}, {.globs = {""}}};
  plan.activation_checkpointing = {"model.layers.*"};
  const ResolvedPlan fine = resolve(plan, tree, 4);
  EXPECT_FALSE(
      merge_units(step_workload(of, fine, {.batch = 1, .seq = 8}), fine, plan_of(of, 0, true)));
}

}  // namespace
}  // namespace shardlens::plan
