// Planted faults: each must show up in the right pair of orders, named.
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>

#include "core/dist/world.h"
#include "core/fsdp/executor.h"
#include "core/fsdp/fully_shard.h"
#include "core/module/tree_of.h"
#include "profiler/analysis/order.h"
#include "profiler/analysis/timeline.h"
#include "profiler/record/finish.h"
#include "profiler/record/spool_recorder.h"
#include "profiler/trace/run.h"
#include "tests/core/fsdp/mlp.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using analysis::Order;
using analysis::OrderEntry;
using test::Mlp;

constexpr int64_t kWidth = 8;
constexpr int64_t kBlocks = 4;
constexpr int kSteps = 4;

using MakeExecutor = std::function<std::unique_ptr<fsdp::Executor>(
    std::vector<fsdp::FlatParamHandle*>, dist::World&, Recorder*)>;

// The forward that the config promises: the root around the blocks in order.
plan::Workload workload_of(const plan::ResolvedPlan& plan) {
  plan::Workload workload;
  const auto hook = [&](Hook kind, UnitId unit) {
    workload.order.push_back(
        {plan::WorkloadItem::Kind::kHook, static_cast<uint32_t>(workload.hooks.size())});
    workload.hooks.push_back({kind, unit});
  };
  const auto operators = [&](UnitId unit) {
    workload.order.push_back(
        {plan::WorkloadItem::Kind::kOperator, static_cast<uint32_t>(workload.operators.size())});
    workload.operators.emplace_back().unit = unit;
  };
  hook(Hook::kRootPreForward, 0);
  hook(Hook::kPreForward, 0);
  operators(0);
  for (UnitId unit = 1; unit < plan.units.size(); ++unit) {
    hook(Hook::kPreForward, unit);
    operators(unit);
    hook(Hook::kPostForward, unit);
  }
  operators(0);
  hook(Hook::kPostForward, 0);
  return workload;
}

// Trains rank 0 of an emulated world of 8, captures it and compares the orders.
Order captured_order(const std::function<void(Mlp&)>& change, const MakeExecutor& make_executor) {
  std::string directory = (fs::temp_directory_path() / "shardlens_orders_XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) {
    throw std::runtime_error("cannot make " + directory);
  }
  fs::path file;
  trace::PlannedInputs planned;
  {
    record::SpoolRecorder recorder(
        {.directory = directory, .rank = 0, .world_size = 8, .backend = "emulated"});
    dist::WorldOptions world_options;
    world_options.backend = dist::BackendKind::kEmulated;
    world_options.world_size = 8;
    world_options.recorder = &recorder;
    auto world = dist::World::join(world_options);
    Mlp model(kWidth, kBlocks);
    planned.plan = plan::resolve(test::mlp_plan(), module::tree_of(*model), 8);
    planned.workload = workload_of(planned.plan);
    fsdp::Options options{.world = world.get(), .recorder = &recorder};
    if (make_executor) {
      options.make_executor = [&](std::vector<fsdp::FlatParamHandle*> handles) {
        return make_executor(std::move(handles), *world, &recorder);
      };
    }
    const auto sharded = fsdp::fully_shard(model.ptr(), planned.plan, options);
    change(model);
    for (int step = 0; step < kSteps; ++step) {
      recorder.step_begin(step);
      const at::Tensor x = at::ones({2, kWidth});
      at::mse_loss(model(x), at::ones({2, 2})).backward();
      sharded->zero_grad();
      sharded->optimizer_done();
      recorder.step_end();
    }
    world.reset();  // the communication thread has recorded everything
    file = record::finish_trace(recorder);
  }
  const trace::Trace trace = trace::read_trace(file);
  fs::remove_all(directory);
  const analysis::Timeline timeline = analysis::make_timeline(trace);
  std::vector<trace::Diagnostic> diagnostics;
  return analysis::check_order(analysis::step_orders(trace, timeline, &planned, diagnostics));
}

void expect_difference(const analysis::OrderCheck& check,
                       const OrderEntry& expected,
                       const OrderEntry& found) {
  EXPECT_GT(check.compared, 0);
  ASSERT_TRUE(check.first_difference.has_value());
  EXPECT_EQ(check.first_difference->expected, expected);
  EXPECT_EQ(check.first_difference->found, found);
}

// Executes what the schedule prefetches for backward only when the unit itself asks: the prefetch
// is dropped.
class LateExecutor : public fsdp::Executor {
 public:
  using Executor::Executor;
  void execute(const schedule::Action& action, bool fresh_views, bool grad_mode) override {
    if (action.cause == schedule::Cause::kBackwardPrefetch) {
      held_.push_back(action);
      return;
    }
    if (!held_.empty() && action.unit == held_.front().unit) {
      const schedule::ActionList late = std::exchange(held_, {});
      for (const schedule::Action& each : late) {
        Executor::execute(each, fresh_views, grad_mode);
      }
    }
    Executor::execute(action, fresh_views, grad_mode);
  }

 private:
  schedule::ActionList held_;
};

// Issues each prefetched all-gather in its place, but hands it to the communication thread only
// behind the next reduce-scatter.
class DelayingExecutor : public fsdp::Executor {
 public:
  using Executor::Executor;
  void execute(const schedule::Action& action, bool fresh_views, bool grad_mode) override {
    Executor::execute(action, fresh_views, grad_mode);
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
    // The first block's has no reduce-scatter of its own unit to hide behind before it is needed.
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
