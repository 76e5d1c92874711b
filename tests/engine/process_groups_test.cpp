// separate_reduce_scatter_group: reduce-scatters in a process group of their own.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <torch/optim/adamw.h>

#include "core/base/collective_timer.h"
#include "profiler/analysis/order/order_checks.h"
#include "profiler/analysis/timeline/timeline.h"
#include "tests/engine/emulated_training.h"
#include "tests/support/ranks.h"

namespace shardlens {
namespace {

using test::Mlp;

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
};

// Three steps of two microbatches, with clipping.
Trained train(dist::World& world, const std::string& more) {
  constexpr int64_t kWidth = 5;
  Mlp model = test::make_mlp(kWidth, 3);
  const auto sharded = fsdp::fully_shard(model.ptr(), test::mlp_plan("null", more),
                                         {.world = &world, .check_ledger = true});
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  Trained out;
  for (int step = 0; step < 3; ++step) {
    for (int m = 0; m < 2; ++m) {
      const at::Tensor x =
          test::seeded({4, kWidth}, static_cast<uint64_t>(100 * step + 2 * world.rank() + m));
      const at::Tensor loss = at::mse_loss(model(x), x.narrow(1, 0, 2));
      loss.backward();
      out.losses.push_back(loss.item<double>());
    }
    static_cast<void>(sharded->clip_grad_norm(0.05));
    optimizer.step();
    sharded->optimizer_done();
    optimizer.zero_grad();
  }
  for (uint32_t p = 0; p < sharded->plan().tree.parameters.size(); ++p) {
    out.parameters.push_back(sharded->full_parameter(p).clone());
  }
  return out;
}

// Reductions have the same operands in the same order.
TEST(ProcessGroupsTest, SeparateReduceScatterGroupChangesNoBit) {
  const struct {
    const char* more;
    int ranks;
  } cases[] = {{"", 2},
               {R"(, "layout": "per_parameter")", 3},
               {R"(, "dialect": "fsdp1")", 2},
               {R"(, "mesh": {"replicate": 2, "shard": 2})", 4}};
  for (const auto& c : cases) {
    test::run_ranks(c.ranks, [&](dist::World& world) {
      const Trained one = train(world, c.more);
      const Trained two =
          train(world, std::string(c.more) + R"(, "separate_reduce_scatter_group": true)");
      EXPECT_EQ(one.losses, two.losses) << c.more;
      ASSERT_EQ(one.parameters.size(), two.parameters.size());
      for (size_t p = 0; p < one.parameters.size(); ++p) {
        EXPECT_TRUE(at::equal(one.parameters[p], two.parameters[p])) << c.more << " " << p;
      }
    });
  }
}

class Lasting : public CollectiveTimer {
 public:
  [[nodiscard]] Nanoseconds duration(CollectiveKind kind,
                                     int /*ranks*/,
                                     Bytes /*larger_message*/) const override {
    return kind == CollectiveKind::kReduceScatter ? 12'000'000 : 4'000'000;
  }
};

// Reduce-scatters last longer than all-gathers, which begin while they run. Planned, issued and
// started order are the same: each group keeps its own.
TEST(ProcessGroupsTest, SeparateReduceScattersRunInTheirOwnOrder) {
  constexpr int kSteps = 3;
  for (const bool separate : {false, true}) {
    plan::Plan plan = test::mlp_plan();
    plan.separate_reduce_scatter_group = separate;
    const trace::Run run =
        test::captured({.steps = kSteps, .plan = plan, .timer = std::make_shared<Lasting>()});
    const trace::Trace& trace = run.traces.at(0);
    const analysis::Timeline timeline = analysis::make_timeline(trace);
    std::vector<trace::Diagnostic> diagnostics;
    const analysis::Order order =
        analysis::check_order(analysis::step_orders(trace, timeline, &*run.planned, diagnostics));
    // Per step: 5 all-gathers in forward, 4 in backward (the root is kept), 5 reduce-scatters.
    EXPECT_EQ(order.planned_vs_issued.compared, kSteps * 14);
    EXPECT_EQ(order.issued_vs_started.compared, kSteps * 14);
    EXPECT_FALSE(order.planned_vs_issued.first_difference.has_value());
    EXPECT_FALSE(order.issued_vs_started.first_difference.has_value());
    int together = 0;
    for (const analysis::Collective& a : timeline.collectives) {
      for (const analysis::Collective& b : timeline.collectives) {
        if (a.kind == CollectiveKind::kAllGather && b.kind == CollectiveKind::kReduceScatter) {
          together += a.when.start < b.when.end && b.when.start < a.when.end ? 1 : 0;
        }
      }
    }
    // In each backward, those of layers.1 and layers.0 are issued after a reduce-scatter.
    EXPECT_TRUE(separate ? together >= 2 * kSteps : together == 0) << together;
  }
}

}  // namespace
}  // namespace shardlens
