#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "profiler/analysis/units/unit_figures.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using schedule::Cause;
using test::TraceBuilder;
using trace::Category;

const PartFigures& part(const std::vector<UnitFigures>& units,
                        std::string_view fqn,
                        UnitPart which) {
  for (const UnitFigures& unit : units) {
    if (unit.is_unit && unit.fqn == fqn && unit.parts[static_cast<size_t>(which)]) {
      return *unit.parts[static_cast<size_t>(which)];
    }
  }
  throw std::runtime_error("no such unit or part");
}

const std::vector<UnitFigures>& units_of(const Analysis& result, size_t rank = 0) {
  Nanoseconds sum = 0;
  for (const UnitFigures& unit : result.ranks.at(rank).units) {
    sum += unit.exposed();
  }
  EXPECT_EQ(sum, result.ranks.at(rank).figures.exposed_comm);
  return result.ranks.at(rank).units;
}

Analysis analyzed_units(TraceBuilder& b) {
  return analyze(trace::Run::of({b.finish()}));
}

// One step of a CPU run: root first, layer 0 without prefetch, then backward.
TEST(UnitsTest, StepOfACpuRunByHand) {
  TraceBuilder b;
  b.step(1, 0, 1000);
  b.hook(Hook::kRootPreForward, "", 5);
  b.collective({.kind = CollectiveKind::kAllGather,
                .fqn = "",
                .issued = 10,
                .start = 12,
                .end = 60,
                .waited = 15});
  b.op("aten::embedding", 60, 100);
  b.hook(Hook::kPreForward, "layers.0", 100);
  b.collective({.kind = CollectiveKind::kAllGather,
                .fqn = "layers.0",
                .issued = 105,
                .start = 106,
                .end = 156,
                .waited = 110});
  b.op("aten::mm", 160, 300);
  b.hook(Hook::kPreBackward, "layers.0", 310);
  b.collective({.kind = CollectiveKind::kAllGather,
                .fqn = "layers.0",
                .issued = 315,
                .start = 316,
                .end = 356,
                .waited = 320});
  b.op("aten::mm", 360, 500);
  b.hook(Hook::kGradsReady, "layers.0", 500);
  // 30 of its 80 overlap compute.
  b.collective({.kind = CollectiveKind::kReduceScatter,
                .fqn = "layers.0",
                .issued = 505,
                .start = 510,
                .end = 590,
                .waited = 800});
  b.op("aten::embedding_dense_backward", 520, 550);
  b.hook(Hook::kGradsReady, "", 600);
  b.collective({.kind = CollectiveKind::kReduceScatter,
                .fqn = "",
                .issued = 605,
                .start = 610,
                .end = 700,
                .waited = 620});
  b.op("aten::_fused_adamw_", 900, 950);
  const Analysis result = analyzed_units(b);
  const auto& units = units_of(result);

  const PartFigures& root = part(units, "", UnitPart::kAllGatherForward);
  EXPECT_EQ(root.count, 1);
  EXPECT_EQ(root.bytes, 400);  // 100 floats gathered
  EXPECT_EQ(root.busy, 48);
  EXPECT_EQ(root.exposed, 48);
  EXPECT_EQ(root.lead, 15 - 60);
  EXPECT_EQ(root.cause, ExposedCause::kFirst);
  EXPECT_EQ(root.issued_by, Cause::kOwn);

  EXPECT_EQ(part(units, "layers.0", UnitPart::kAllGatherForward).cause,
            ExposedCause::kHostIsCompute);
  EXPECT_EQ(part(units, "layers.0", UnitPart::kAllGatherForward).lead, 110 - 156);
  EXPECT_EQ(part(units, "layers.0", UnitPart::kAllGatherBackward).cause, ExposedCause::kNoPrefetch);
  EXPECT_EQ(part(units, "layers.0", UnitPart::kAllGatherBackward).exposed, 40);
  const PartFigures& scatter = part(units, "layers.0", UnitPart::kReduceScatter);
  EXPECT_EQ(scatter.exposed, 50);
  EXPECT_EQ(scatter.cause, ExposedCause::kBandwidth);
  EXPECT_EQ(scatter.lead, 800 - 590);
  EXPECT_EQ(part(units, "", UnitPart::kReduceScatter).cause, ExposedCause::kLast);
}

TEST(UnitsTest, AHiddenCollectiveHasNoCause) {
  TraceBuilder b;
  b.step(1, 0, 200);
  b.hook(Hook::kPreForward, "a", 0);
  b.collective({.fqn = "b",
                .issued = 5,
                .start = 10,
                .end = 40,
                .waited = 110,
                .cause = Cause::kForwardPrefetch});
  b.op("aten::mm", 0, 100);
  const Analysis result = analyzed_units(b);
  const PartFigures& p = part(units_of(result), "b", UnitPart::kAllGatherForward);
  EXPECT_EQ(p.exposed, 0);
  EXPECT_EQ(p.cause, std::nullopt);
  EXPECT_EQ(p.lead, 70);
  EXPECT_EQ(p.issued_by, Cause::kForwardPrefetch);
}

// Adds the first all-gather of the step, so that the one under test is not the first.
void first_all_gather(TraceBuilder& b) {
  b.hook(Hook::kPreForward, "first", 0);
  b.collective({.fqn = "first", .issued = 1, .start = 1, .end = 10, .waited = 2});
}

TEST(UnitsTest, APrefetchThatOutlastsTheComputeBesideItIsBandwidth) {
  TraceBuilder b;
  b.step(1, -400, 500);
  // As large, and as long: its size takes so long.
  b.hook(Hook::kPreForward, "first", -310);
  b.collective({.fqn = "first", .issued = -300, .start = -300, .end = -110, .waited = -299});
  b.collective({.fqn = "b",
                .issued = 12,
                .start = 12,
                .end = 200,
                .waited = 110,
                .cause = Cause::kForwardPrefetch});
  b.op("aten::mm", 20, 100);
  b.op("aten::mm", 200, 300);
  const Analysis result = analyzed_units(b);
  const PartFigures& p = part(units_of(result), "b", UnitPart::kAllGatherForward);
  EXPECT_EQ(p.exposed, 188 - 80);
  EXPECT_EQ(p.cause, ExposedCause::kBandwidth);
}

TEST(UnitsTest, APrefetchWithNothingBesideItCameFromALateHost) {
  TraceBuilder b;
  b.step(1, 0, 500);
  first_all_gather(b);
  b.op("aten::mm", 20, 100);
  b.collective({.fqn = "b",
                .issued = 105,
                .start = 105,
                .end = 200,
                .waited = 110,
                .cause = Cause::kForwardPrefetch});
  b.op("aten::mm", 200, 300);
  const Analysis result = analyzed_units(b);
  EXPECT_EQ(part(units_of(result), "b", UnitPart::kAllGatherForward).cause,
            ExposedCause::kLateHost);
}

TEST(UnitsTest, WaitingBehindAnotherCollectiveIsQueued) {
  TraceBuilder b;
  b.step(1, 0, 500);
  first_all_gather(b);
  b.hook(Hook::kGradsReady, "a", 15);
  b.collective({.kind = CollectiveKind::kReduceScatter,
                .fqn = "a",
                .issued = 20,
                .start = 20,
                .end = 150,
                .waited = 450});
  b.collective({.fqn = "b",
                .issued = 30,
                .start = 150,
                .end = 200,
                .waited = 160,
                .cause = Cause::kBackwardPrefetch});
  b.op("aten::mm", 20, 155);
  b.op("aten::mm", 200, 300);
  const Analysis result = analyzed_units(b);
  EXPECT_EQ(part(units_of(result), "b", UnitPart::kAllGatherBackward).cause, ExposedCause::kQueued);
}

// The limiter delayed 34 of the 50 that were exposed; a delay of 4 is not the cause.
TEST(UnitsTest, BeingHeldUpByTheLimiterIsTheLimiter) {
  const auto cause = [](Nanoseconds wait_began) {
    TraceBuilder b;
    b.step(1, 0, 500);
    first_all_gather(b);
    b.hook(Hook::kPreForward, "b", 15);
    b.action(schedule::Op::kHostWait, "b", wait_began, schedule::Stream::kCompute, Cause::kLimiter,
             77);
    b.collective({.fqn = "b", .issued = 50, .start = 50, .end = 100, .waited = 55});
    b.op("aten::mm", 100, 120);
    const Analysis result = analyzed_units(b);
    return part(units_of(result), "b", UnitPart::kAllGatherForward).cause;
  };
  EXPECT_EQ(cause(16), ExposedCause::kLimiter);
  EXPECT_EQ(cause(46), ExposedCause::kHostIsCompute);
}

TEST(UnitsTest, WhoWaitsForAnotherRankSaysPeer) {
  const auto rank = [](int64_t r, Nanoseconds start) {
    TraceBuilder b(r);
    b.step(1, 0, 500);
    first_all_gather(b);
    b.collective({.fqn = "b", .issued = 20, .start = start, .end = 200, .waited = 25});
    b.op("aten::mm", 300, 400);
    return b.finish();
  };
  std::vector<trace::Trace> traces;
  traces.push_back(rank(0, 30));
  traces.push_back(rank(1, 170));
  const Analysis result = analyze(trace::Run::of(std::move(traces)));
  EXPECT_EQ(part(units_of(result, 0), "b", UnitPart::kAllGatherForward).cause, ExposedCause::kPeer);
  EXPECT_EQ(part(units_of(result, 1), "b", UnitPart::kAllGatherForward).cause,
            ExposedCause::kHostIsCompute);
}

TEST(UnitsTest, OnADeviceAnAllGatherIssuedWhileItIdlesCameLate) {
  TraceBuilder b;
  b.range("FSDP::all_gather (a)", 0, 10);
  b.range("FSDP::all_gather (b)", 20, 30);
  b.device(Category::kKernel, "ncclDevKernel_AllGather_RING_LL", 20, 5, 6, 15);
  b.device(Category::kKernel, "gemm", 7, 16, 17, 19);
  b.device(Category::kKernel, "ncclDevKernel_AllGather_RING_LL", 20, 25, 26, 40);
  b.device(Category::kKernel, "gemm", 7, 31, 40, 60);
  const Analysis result = analyzed_units(b);
  EXPECT_EQ(part(units_of(result), "b", UnitPart::kAllGatherForward).cause,
            ExposedCause::kLateHost);
  EXPECT_EQ(part(units_of(result), "a", UnitPart::kAllGatherForward).cause, ExposedCause::kFirst);
}

TEST(UnitsTest, CollectivesOfNoUnitAreListedApart) {
  TraceBuilder b;
  b.step(1, 0, 100);
  b.op("aten::mm", 0, 10);
  b.communication({.kind = CollectiveKind::kAllReduce, .issued = 20, .start = 21, .end = 51}, 0);
  const Analysis result = analyzed_units(b);
  const auto& units = units_of(result);
  ASSERT_EQ(units.size(), 1U);
  EXPECT_FALSE(units[0].is_unit);
  const auto& other = units[0].parts[static_cast<size_t>(UnitPart::kOther)];
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->exposed, 30);
  EXPECT_EQ(other->cause, ExposedCause::kHostIsCompute);
}

TEST(UnitsTest, RecomputedForwardsGatherForBackward) {
  TraceBuilder b;
  b.step(1, 0, 100);
  b.hook(Hook::kPreForward, "a", 5, true);
  b.collective({.fqn = "a", .issued = 20, .start = 21, .end = 51, .waited = 25});
  const Analysis result = analyzed_units(b);
  EXPECT_EQ(part(units_of(result), "a", UnitPart::kAllGatherBackward).count, 1);
}

}  // namespace
}  // namespace shardlens::analysis
