// Where a planned step has the communication of its workload.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/model/step_workload.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/schedule/planned/planned.h"
#include "core/tree/module_tree.h"
#include "tests/core/workload/with_communication.h"

namespace shardlens::schedule::test {
namespace {

plan::ModelConfig small_llama() {
  return plan::load_model_config(std::string(SHARDLENS_TEST_DATA) + "/llama-tiny");
}

plan::ResolvedPlan full_shard(const plan::ModelConfig& config, const std::string& checkpointed) {
  const plan::ModuleTree tree = plan::module_tree(config);
  plan::Plan plan = plan::strategy_plan("full_shard", tree);
  if (!checkpointed.empty()) {
    plan.activation_checkpointing = {checkpointed};
  }
  return plan::resolve(plan, tree, 2);
}

// Communication after every fourth operator of forward and backward, and in what a checkpoint runs
// again. Of backward, only every other names the item that it differentiates.
plan::Workload with_communications(plan::Workload workload) {
  std::vector<plan::WorkloadItem> forward;
  int count = 0;
  for (size_t at = 0; at < workload.order.size(); ++at) {
    const plan::WorkloadItem item = workload.order[at];
    if (item.kind != plan::WorkloadItem::Kind::kOperator || ++count % 4 != 0) {
      continue;
    }
    const plan::Operator& op = workload.operators[item.index];
    plan::Communication each;
    each.phase = op.phase;
    each.unit = op.unit;
    if (op.phase == plan::Phase::kRecompute) {
      each.forward = forward.front();
    } else if (op.phase == plan::Phase::kBackward && count % 8 == 0) {
      each.forward = plan::WorkloadItem{item.kind, static_cast<uint32_t>(op.forward)};
    }
    const plan::WorkloadItem made =
        shardlens::test::insert_communication(workload, ++at, std::move(each));
    if (op.phase == plan::Phase::kForward) {
      forward.push_back(made);
    }
  }
  return workload;
}

TEST(PlannedTest, CommunicationIsWhereTheWorkloadHasIt) {
  const plan::ModelConfig config = small_llama();
  for (const char* checkpointed : {"", "model.layers.*"}) {
    const plan::ResolvedPlan plan = full_shard(config, checkpointed);
    const plan::Workload workload =
        with_communications(plan::step_workload(config, plan, {.batch = 1, .seq = 8}));
    ASSERT_GT(workload.communications.size(), 20U);
    std::vector<plan::WorkloadItem> found, expected;
    const PlannedStep step = planned_step(workload, plan);
    for (size_t i = 0; i < step.order.size(); ++i) {
      const PlannedItem& item = step.order[i];
      if (item.kind == PlannedItem::Kind::kOperator) {
        found.push_back({plan::WorkloadItem::Kind::kOperator, item.index});
      } else if (item.kind == PlannedItem::Kind::kCommunication) {
        found.push_back({plan::WorkloadItem::Kind::kCommunication, item.index});
        ASSERT_EQ(step.order.at(i + 1), (PlannedItem{PlannedItem::Kind::kWait, item.index}));
      }
    }
    for (const plan::WorkloadItem& item : workload.order) {
      if (item.kind != plan::WorkloadItem::Kind::kHook) {
        expected.push_back(item);
      }
    }
    EXPECT_EQ(found, expected);
  }
}

// The item that waits comes in another place than in the workload, or not at all.
TEST(PlannedTest, EveryCommunicationIsWaitedFor) {
  const plan::ModelConfig config = small_llama();
  const plan::ResolvedPlan plan = full_shard(config, "");
  const plan::Workload made =
      with_communications(plan::step_workload(config, plan, {.batch = 1, .seq = 8}));
  for (const size_t by :
       {size_t{0}, made.order.size() / 4, made.order.size() / 2, made.order.size() - 1}) {
    plan::Workload workload = made;
    for (plan::Communication& each : workload.communications) {
      each.waited_by = workload.order[by];
    }
    const PlannedStep step = planned_step(workload, plan, 3, /*accumulate=*/2);
    std::map<uint32_t, int> open;
    for (const PlannedItem& item : step.order) {
      if (item.kind == PlannedItem::Kind::kCommunication) {
        EXPECT_EQ(open[item.index]++, 0);
      } else if (item.kind == PlannedItem::Kind::kWait) {
        EXPECT_EQ(open[item.index]--, 1);
      } else if (item.kind == PlannedItem::Kind::kHook &&
                 (step.hooks[item.index].hook == Hook::kBackwardEnd ||
                  step.hooks[item.index].hook == Hook::kOptimizerDone)) {
        for (const auto& [index, count] : open) {
          EXPECT_EQ(count, 0) << index;
        }
      }
    }
    EXPECT_EQ(open.size(), workload.communications.size());
  }
}

}  // namespace
}  // namespace shardlens::schedule::test
