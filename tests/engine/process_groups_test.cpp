// Settings that FSDP2 has from torch 2.13 and 2.15 on: reduce-scatters in a process group of their
// own, several inputs of reductions at the same time, storage that is kept, backward that the
// program ends.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
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
  int64_t unsharded_bytes = 0;  // after the last step
};

// Three steps of two microbatches, with clipping.
Trained train(dist::World& world, const std::string& more, bool sync_every_microbatch = true) {
  constexpr int64_t kWidth = 5;
  Mlp model = test::make_mlp(kWidth, 3);
  const auto sharded = fsdp::fully_shard(model.ptr(), test::mlp_plan("null", more),
                                         {.world = &world, .check_ledger = true});
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  Trained out;
  for (int step = 0; step < 3; ++step) {
    for (int m = 0; m < 2; ++m) {
      sharded->set_requires_gradient_sync(sync_every_microbatch || m == 1);
      sharded->begin_microbatch(m == 1);
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
  out.unsharded_bytes = sharded->unsharded_bytes();
  for (uint32_t p = 0; p < sharded->plan().tree.parameters.size(); ++p) {
    out.parameters.push_back(sharded->full_parameter(p).clone());
  }
  return out;
}

struct Setting {
  const char* more;
  int ranks;
};

void expect_the_same(const Setting& c, const char* setting, int64_t kept = 0) {
  test::run_ranks(c.ranks, [&](dist::World& world) {
    const Trained one = train(world, c.more);
    const Trained two = train(world, std::string(c.more) + setting);
    EXPECT_EQ(one.losses, two.losses) << c.more;
    ASSERT_EQ(one.parameters.size(), two.parameters.size());
    for (size_t p = 0; p < one.parameters.size(); ++p) {
      EXPECT_TRUE(at::equal(one.parameters[p], two.parameters[p])) << c.more << " " << p;
    }
    EXPECT_EQ(one.unsharded_bytes, 0) << c.more;
    EXPECT_EQ(two.unsharded_bytes, kept) << c.more;
  });
}

// Reductions have the same operands in the same order.
TEST(ProcessGroupsTest, SeparateReduceScatterGroupChangesNoBit) {
  for (const Setting& c : {Setting{"", 2}, Setting{R"(, "layout": "per_parameter")", 3},
                           Setting{R"(, "dialect": "fsdp1")", 2},
                           Setting{R"(, "mesh": {"replicate": 2, "shard": 2})", 4}}) {
    expect_the_same(c, R"(, "separate_reduce_scatter_group": true)");
  }
}

TEST(LaterSettingsTest, SeveralInputsOfReductionsChangeNoBit) {
  for (const Setting& c : {Setting{"", 2}, Setting{R"(, "layout": "per_parameter")", 3},
                           Setting{R"(, "mesh": {"replicate": 2, "shard": 2})", 4}}) {
    expect_the_same(c, R"(, "reduce_scatter_max_input_buffers": 3)");
  }
}

TEST(LaterSettingsTest, KeptStorageChangesNoBitAndStays) {
  // Rows of weights and biases are padded for the ranks: blocks of [8, 5], [8], [5, 8], [5], and a
  // root of [5, 5], [5], [2, 5], [2].
  constexpr int64_t kOf3 = 3 * (9 * 5 + 9 + 6 * 8 + 6) + 6 * 5 + 6 + 3 * 5 + 3;
  constexpr int64_t kOf2 = 3 * (8 * 5 + 8 + 6 * 8 + 6) + 6 * 5 + 6 + 2 * 5 + 2;
  constexpr auto kItem = static_cast<int64_t>(sizeof(float));
  expect_the_same({R"(, "layout": "per_parameter")", 3}, R"(, "keep_unsharded_storage": true)",
                  kOf3 * kItem);
  expect_the_same({R"(, "layout": "per_parameter", "mesh": {"replicate": 2, "shard": 2})", 4},
                  R"(, "keep_unsharded_storage": true)", kOf2 * kItem);
}

// Without sync in the first microbatch, each unit is reduced once, however the backward ends.
TEST(LaterSettingsTest, ABackwardThatTheProgramEndsChangesNoBit) {
  for (const char* layout : {"flat", "per_parameter"}) {
    const std::string more = R"(, "layout": ")" + std::string(layout) + '"';
    test::run_ranks(2, [&](dist::World& world) {
      const Trained one = train(world, more, /*sync_every_microbatch=*/false);
      for (const char* end : {"waits", "reduces"}) {
        const Trained two = train(world, more + R"(, "backward_finalization": ")" + end + '"',
                                  /*sync_every_microbatch=*/false);
        EXPECT_EQ(one.losses, two.losses) << layout << " " << end;
        for (size_t p = 0; p < one.parameters.size(); ++p) {
          EXPECT_TRUE(at::equal(one.parameters[p], two.parameters[p])) << layout << " " << end;
        }
      }
    });
  }
}

// The root's gradients wait for the last microbatch, so that they are summed before they are
// reduced.
TEST(LaterSettingsTest, ABackwardThatTheProgramEndsReducesAllGradients) {
  test::run_ranks(2, [](dist::World& world) {
    const Trained one = train(world, "");
    const Trained two = train(world, R"(, "backward_finalization": "waits")");
    for (size_t p = 0; p < one.parameters.size(); ++p) {
      EXPECT_TRUE(at::allclose(one.parameters[p], two.parameters[p], 1e-4, 1e-5)) << p;
    }
  });
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
