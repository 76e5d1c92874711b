// Steps that follow any others are equal to the third of three full steps.
#include "core/schedule/planned/steady_step.h"

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "core/model/step_workload.h"
#include "core/plan/plan.h"
#include "core/plan/resolve.h"
#include "core/tree/module_tree.h"
#include "tests/core/workload/with_communication.h"

namespace shardlens::schedule::test {
namespace {

class Chooser {
 public:
  explicit Chooser(unsigned seed) : random_(seed) {}
  template <class T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[std::uniform_int_distribution<size_t>(0, choices.size() - 1)(random_)];
  }

 private:
  std::mt19937 random_;
};

plan::Plan random_plan(Chooser& choose, const plan::ModuleTree& tree) {
  const auto strategy = choose.of<std::string>(
      {"full_shard", "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "replicate"});
  plan::Plan plan = plan::strategy_plan(strategy, tree);
  if (strategy == "replicate") {
    return plan;
  }
  plan.dialect = choose.of({plan::Dialect::kFsdp1, plan::Dialect::kFsdp2});
  if (plan.dialect == plan::Dialect::kFsdp2) {
    plan.layout = choose.of({plan::Layout::kFlat, plan::Layout::kPerParameter});
    plan.forward_prefetch = choose.of<int64_t>({0, 0, 1, 2});
    plan.reduce_scatter_max_input_buffers = choose.of<int64_t>({1, 1, 2, 3});
    plan.reduce_scatter_unused_params = choose.of({false, false, true});
    using enum plan::Finalization;
    plan.backward_finalization = choose.of({kAutomatic, kAutomatic, kWaits, kReduces});
  } else {
    plan.forward_prefetch = choose.of<int64_t>({0, 1});
    plan.limit_all_gathers = choose.of({true, false});
  }
  if (strategy == "shard_grad_op" && choose.of({true, false})) {
    plan.mesh.shard = plan.mesh.replicate = 2;
  }
  plan.backward_prefetch = choose.of({plan::BackwardPrefetch::kPre, plan::BackwardPrefetch::kNone});
  plan.views = choose.of({plan::Views::kFresh, plan::Views::kFresh, plan::Views::kFrozen});
  if (choose.of({true, false})) {
    plan.mixed_precision.param_dtype = DType::kBF16;
    plan.mixed_precision.reduce_dtype = choose.of({DType::kF32, DType::kBF16});
  }
  if (choose.of({true, false, false})) {
    plan.activation_checkpointing = {"model.layers.*"};
  }
  return plan;
}

// Adds communication of forward and of backward, which other operators wait for or none.
void communicate(Chooser& choose, plan::Workload& workload) {
  for (const plan::Phase phase : {plan::Phase::kForward, plan::Phase::kBackward}) {
    const size_t at = shardlens::test::position_of(workload, phase, choose.of({0, 5, 17}));
    const plan::Operator& op = workload.operators[workload.order[at].index];
    plan::Communication each;
    each.phase = phase;
    each.unit = op.unit;
    if (choose.of({true, false})) {
      each.waited_by =
          workload.order[shardlens::test::position_of(workload, phase, choose.of({18, 19, 30}))];
    }
    shardlens::test::insert_communication(workload, at + 1, std::move(each));
  }
}

// The order without the numbers of operators that are one item.
std::vector<PlannedItem> one_by_one(const PlannedStep& step) {
  std::vector<PlannedItem> out;
  for (const PlannedItem& item : step.order) {
    for (uint32_t i = 0; i < item.count; ++i) {
      out.push_back({item.kind, item.index + i});
    }
  }
  return out;
}

// The limiter may take other events, so waits must be for the same recordings, not for equal
// events.
void expect_same(const PlannedStep& found, const PlannedStep& expected) {
  EXPECT_EQ(one_by_one(found), expected.order);
  EXPECT_EQ(found.unit_names, expected.unit_names);
  EXPECT_EQ(found.buckets.size(), expected.buckets.size());
  ASSERT_EQ(found.hooks.size(), expected.hooks.size());
  for (size_t i = 0; i < found.hooks.size(); ++i) {
    ASSERT_EQ(found.hooks[i], expected.hooks[i]) << "hook " << i;
  }
  ASSERT_EQ(found.actions.size(), expected.actions.size());
  std::map<EventId, size_t> recorded, expected_recorded;  // by event, the last recording so far
  const auto recording = [](const std::map<EventId, size_t>& of, EventId event) {
    const auto found = of.find(event);
    return found == of.end() ? std::nullopt : std::optional(found->second);
  };
  for (size_t i = 0; i < found.actions.size(); ++i) {
    Action action = found.actions[i].action;
    const Action& other = expected.actions[i].action;
    action.buffer.generation = other.buffer.generation;
    if (action.op == Op::kRecord) {
      recorded[action.event] = expected_recorded[other.event] = i;
    }
    ASSERT_EQ(recording(recorded, action.event), recording(expected_recorded, other.event)) << i;
    ASSERT_EQ(action.event == kNoEvent, other.event == kNoEvent) << i;
    action.event = other.event;
    ASSERT_EQ(action, other) << "action " << i;
    ASSERT_EQ(found.actions[i].hook, expected.actions[i].hook) << "action " << i;
    ASSERT_EQ(found.actions[i].seq, expected.actions[i].seq);
  }
}

TEST(SteadyStepTest, EqualsTheThirdStep) {
  const plan::ModelConfig config = plan::parse_model_config(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 100,
          "max_position_embeddings": 32})",
      "six blocks");
  const plan::ModuleTree tree = plan::module_tree(config);
  Chooser choose(8);
  PlannedStep storage;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const plan::ResolvedPlan plan = plan::resolve(random_plan(choose, tree), tree, 4);
    plan::Workload workload = plan::step_workload(config, plan, {.batch = 1, .seq = 8});
    if (choose.of({true, false})) {
      communicate(choose, workload);
    }
    const WorkloadOutline outline = workload_outline(workload);
    SteadySteps steps(workload, outline, plan);
    for (int more = 0; more < 3; ++more) {
      const int accumulate = choose.of({1, 2, 3, 4, 7});
      const bool sync = choose.of({true, false});
      const std::shared_ptr<PlannedStep> found =
          steps.step(accumulate, sync, std::exchange(storage, {}));
      expect_same(*found, planned_step(workload, plan, 3, accumulate, sync));
      if (found.use_count() == 1) {
        storage = std::move(*found);
      }
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

}  // namespace
}  // namespace shardlens::schedule::test
