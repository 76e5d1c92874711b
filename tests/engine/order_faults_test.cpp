// Injected faults: each must be found, and named, in the right one of the two compared orders.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "profiler/analysis/order/order_checks.h"
#include "profiler/analysis/timeline/timeline.h"
#include "tests/engine/emulated_training.h"

namespace shardlens {
namespace {

using analysis::Order;
using analysis::OrderEntry;
using test::MakeExecutor;
using test::Mlp;

constexpr int kSteps = 4;

// Trains, captures and compares the orders.
Order captured_order(const std::function<void(Mlp&)>& change, const MakeExecutor& make_executor) {
  const trace::Run run =
      test::captured({.steps = kSteps, .change = change, .make_executor = make_executor});
  const analysis::Timeline timeline = analysis::make_timeline(run.traces.at(0));
  std::vector<trace::Diagnostic> diagnostics;
  return analysis::check_order(
      analysis::step_orders(run.traces[0], timeline, &*run.planned, diagnostics));
}

void expect_difference(const analysis::OrderCheck& check,
                       const OrderEntry& expected,
                       const OrderEntry& found) {
  EXPECT_GT(check.compared, 0);
  ASSERT_TRUE(check.first_difference.has_value());
  EXPECT_EQ(check.first_difference->expected, expected);
  EXPECT_EQ(check.first_difference->found, found);
}

// Executes the schedule's prefetches for backward only when the unit itself runs, as if they were
// dropped.
class LateExecutor : public fsdp::Executor {
 public:
  using Executor::Executor;
  void execute(const schedule::Action& action, bool edges) override {
    if (action.cause == schedule::Cause::kBackwardPrefetch) {
      held_.push_back(action);
      return;
    }
    if (!held_.empty() && action.unit == held_.front().unit) {
      const schedule::ActionList late = std::exchange(held_, {});
      for (const schedule::Action& each : late) {
        Executor::execute(each, edges);
      }
    }
    Executor::execute(action, edges);
  }

 private:
  schedule::ActionList held_;
};

// Issues a prefetched all-gather in its place, but passes it to the communication thread only after
// the next reduce-scatter.
class DelayingExecutor : public fsdp::Executor {
 public:
  using Executor::Executor;
  void execute(const schedule::Action& action, bool edges) override {
    Executor::execute(action, edges);
    if (unit_ == nullptr) {
      return;
    }
    if (action.op == schedule::Op::kRecord && action.stream == schedule::Stream::kAllGather) {
      record_ = action;
    } else if (action.op == schedule::Op::kReduceScatter) {
      const uint32_t now = std::exchange(sequence_, held_sequence_);
      Executor::all_gather(held_, *std::exchange(unit_, nullptr));
      record_event(record_);
      sequence_ = now;
    }
  }

 protected:
  void all_gather(const schedule::Action& action, Unit& unit) override {
    // Not the first block's: no reduce-scatter follows before that all-gather is needed.
    if (action.cause == schedule::Cause::kBackwardPrefetch && action.unit == 2) {
      held_ = action;
      held_sequence_ = sequence_;
      unit_ = &unit;
      return;
    }
    Executor::all_gather(action, unit);
  }

 private:
  schedule::Action held_, record_;
  uint32_t held_sequence_ = 0;
  Unit* unit_ = nullptr;
};

template <typename E>
MakeExecutor make() {
  return [](std::vector<fsdp::FlatParamHandle*> handles, dist::World& world, Recorder* recorder) {
    return std::make_unique<E>(std::move(handles), world, recorder);
  };
}

TEST(OrderFaultsTest, UndisturbedRunHasOneOrder) {
  const Order order = captured_order([](Mlp&) {}, nullptr);
  // Per step: 5 all-gathers forward, 4 backward (the root is kept), 5 reduce-scatters.
  EXPECT_EQ(order.planned_vs_issued.compared, kSteps * 14);
  EXPECT_EQ(order.issued_vs_started.compared, kSteps * 14);
  EXPECT_FALSE(order.planned_vs_issued.first_difference.has_value());
  EXPECT_FALSE(order.issued_vs_started.first_difference.has_value());
}

TEST(OrderFaultsTest, SwappedLayersShowInPlannedAgainstIssued) {
  const Order order =
      captured_order([](Mlp& model) { std::swap(model->order[1], model->order[2]); }, nullptr);
  expect_difference(order.planned_vs_issued, {CollectiveKind::kAllGather, "layers.1"},
                    {CollectiveKind::kAllGather, "layers.2"});
  EXPECT_EQ(order.planned_vs_issued.first_difference->step, 0);
  EXPECT_EQ(order.planned_vs_issued.first_difference->index,
            2);  // the root and layers.0 come first
  EXPECT_FALSE(order.issued_vs_started.first_difference.has_value());
}

TEST(OrderFaultsTest, DroppedPrefetchShowsInPlannedAgainstIssued) {
  const Order order = captured_order([](Mlp&) {}, make<LateExecutor>());
  // Backward of layers.3 should all-gather layers.2 before its own reduce-scatter.
  expect_difference(order.planned_vs_issued, {CollectiveKind::kAllGather, "layers.2"},
                    {CollectiveKind::kReduceScatter, "layers.3"});
  EXPECT_FALSE(order.issued_vs_started.first_difference.has_value());
}

TEST(OrderFaultsTest, DelayedCollectiveShowsInIssuedAgainstStarted) {
  const Order order = captured_order([](Mlp&) {}, make<DelayingExecutor>());
  EXPECT_FALSE(order.planned_vs_issued.first_difference.has_value());
  expect_difference(order.issued_vs_started, {CollectiveKind::kAllGather, "layers.1"},
                    {CollectiveKind::kReduceScatter, "layers.2"});
}

}  // namespace
}  // namespace shardlens
