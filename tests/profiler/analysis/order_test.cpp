#include <tuple>

#include <gtest/gtest.h>

#include "profiler/analysis/order/order_checks.h"
#include "tests/profiler/analysis/device_step.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;

constexpr auto kGather = CollectiveKind::kAllGather;
constexpr auto kScatter = CollectiveKind::kReduceScatter;

StepOrder order_of(std::vector<OrderEntry> planned,
                   std::vector<OrderEntry> issued,
                   std::vector<OrderEntry> started) {
  return {4, std::move(planned), std::move(issued), std::move(started)};
}

TEST(OrderTest, EqualOrdersAgree) {
  const std::vector<OrderEntry> order{{kGather, ""}, {kGather, "a"}, {kScatter, "a"}};
  const Order check = check_order({order_of(order, order, order), order_of(order, order, order)});
  EXPECT_EQ(check.planned_vs_issued.compared, 6);
  EXPECT_EQ(check.planned_vs_issued.first_difference, std::nullopt);
  EXPECT_EQ(check.issued_vs_started.compared, 6);
}

TEST(OrderTest, TheFirstDifferenceIsNamed) {
  const std::vector<OrderEntry> planned{{kGather, ""}, {kGather, "a"}, {kGather, "b"}};
  const std::vector<OrderEntry> issued{{kGather, ""}, {kGather, "b"}, {kGather, "a"}};
  const Order check = check_order({order_of(planned, issued, issued)});
  ASSERT_TRUE(check.planned_vs_issued.first_difference.has_value());
  const Difference& d = *check.planned_vs_issued.first_difference;
  EXPECT_EQ(d.step, 4);
  EXPECT_EQ(d.index, 1);
  EXPECT_EQ(to_string(*d.expected), "all_gather (a)");
  EXPECT_EQ(to_string(*d.found), "all_gather (b)");
  EXPECT_EQ(check.issued_vs_started.first_difference, std::nullopt);
}

TEST(OrderTest, AMissingCollectiveIsADifference) {
  const std::vector<OrderEntry> longer{{kGather, ""}, {kScatter, "a"}};
  const Order check = check_order({order_of({}, longer, {longer[0]})});
  EXPECT_EQ(check.planned_vs_issued.compared, 0);
  EXPECT_EQ(check.planned_vs_issued.first_difference, std::nullopt);  // nothing to compare with
  ASSERT_TRUE(check.issued_vs_started.first_difference.has_value());
  EXPECT_EQ(check.issued_vs_started.first_difference->index, 1);
  EXPECT_EQ(to_string(*check.issued_vs_started.first_difference->expected), "reduce_scatter (a)");
  EXPECT_EQ(check.issued_vs_started.first_difference->found, std::nullopt);
}

// Issued a, b, the root's reduction and c. In a process group of its own, a may start after b;
// within one group, c starts before the root's. A collective that starts after the end of its step
// still counts for that step.
TEST(OrderTest, IssuedAndStartedComeFromTheTrace) {
  for (const bool together : {false, true}) {
    TraceBuilder b;
    b.step(3, 0, 100);
    b.step(4, 100, 200);
    b.collective(
        {.kind = kGather, .fqn = "a", .issued = 10, .start = 60, .end = 70, .group = "other"});
    b.collective({.kind = kGather, .fqn = "b", .issued = 20, .start = 30, .end = 40});
    b.collective({.kind = kScatter, .fqn = "", .issued = 80, .start = 130, .end = 140});
    b.collective({.kind = kGather,
                  .fqn = "c",
                  .issued = 90,
                  .start = 120,
                  .end = 125,
                  .group = together ? "shard" : "other"});
    b.collective(
        {.kind = kGather, .fqn = "a", .issued = 110, .start = 141, .end = 142, .group = "other"});
    const trace::Trace trace = b.finish();
    const Timeline timeline = make_timeline(trace);
    std::vector<trace::Diagnostic> diagnostics;
    const auto orders = step_orders(trace, timeline, nullptr, diagnostics);
    ASSERT_EQ(orders.size(), 2U);
    const std::vector<OrderEntry> issued{
        {kGather, "a"}, {kGather, "b"}, {kScatter, ""}, {kGather, "c"}};
    EXPECT_EQ(orders[0].issued, issued);
    const std::vector<OrderEntry> swapped{
        {kGather, "a"}, {kGather, "b"}, {kGather, "c"}, {kScatter, ""}};
    EXPECT_EQ(orders[0].started, together ? swapped : issued);
    EXPECT_EQ(orders[1].issued, orders[1].started);
    const Order check = check_order(orders);
    EXPECT_EQ(check.issued_vs_started.compared, 5);
    ASSERT_EQ(check.issued_vs_started.first_difference.has_value(), together);
    if (together) {
      EXPECT_EQ(check.issued_vs_started.first_difference->step, 3);
      EXPECT_EQ(check.issued_vs_started.first_difference->index, 2);
    }
  }
}

// A gather of activations that is called while FSDP gathers a unit is not the unit's, which began
// after the next unit's.
TEST(OrderTest, ARecordedActionIssuedTheCollectiveOfItsPurpose) {
  test::DeviceStep s;
  s.begin();
  s.range("FSDP::pre_forward (z)", 40, 100);
  s.nccl(kGather, test::kTensorStream, 61, 110, 120, "tp");
  s.range("FSDP::forward_prefetch for a", 60, 78);
  s.range("FSDP::all_gather (a)", 63, 75);
  s.nccl(kGather, test::kGatherStream, 65, 300, 320);
  s.range("FSDP::forward_prefetch for b", 80, 98);
  s.range("FSDP::all_gather (b)", 82, 95);
  s.nccl(kGather, test::kGatherStream, 85, 150, 170);
  for (const auto& [unit, start, end] : {std::tuple{"a", 60, 78}, std::tuple{"b", 80, 98}}) {
    trace::RecordedAction& action = s.b.trace.recorded_actions.emplace_back();
    action.unit = unit;
    action.start = start * test::kUs;
    action.end = end * test::kUs;
  }
  const trace::Trace trace = s.b.finish();
  const Timeline timeline = make_timeline(trace);
  std::vector<trace::Diagnostic> diagnostics;
  const auto orders = step_orders(trace, timeline, nullptr, diagnostics);
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].issued, (std::vector<OrderEntry>{{kGather, "a"}, {kGather, "b"}}));
  EXPECT_EQ(orders[0].started, (std::vector<OrderEntry>{{kGather, "b"}, {kGather, "a"}}));
}

}  // namespace
}  // namespace shardlens::analysis
