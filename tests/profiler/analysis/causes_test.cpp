// Causes on devices, waste, blocks alike and process groups, on traces built event by event. Times
// in microseconds where a delay must be longer than what one event takes to follow another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/report/analysis_report.h"
#include "tests/profiler/analysis/device_step.h"

namespace shardlens::analysis {
namespace {

using test::DeviceStep;
using test::kComputeStream;
using test::kGatherStream;
using test::kReduceStream;
using test::kTensorStream;
using test::kUs;
using test::TraceBuilder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using trace::Category;

const UnitSpan& span(const Analysis& result, std::string_view owner, UnitSpan::Kind kind) {
  for (const UnitSpan& each : result.ranks.at(0).detail->spans) {
    if (each.owner == owner && each.kind == kind) {
      return each;
    }
  }
  throw std::runtime_error("no such span");
}

// The all-gather shares its communicator with a reduction on another stream, which still ran.
TEST(CausesTest, BehindACollectiveOfAnotherStreamIsQueued) {
  DeviceStep s;
  s.begin();
  s.range("FSDP::post_backward_reduce (z)", 40, 60);
  s.nccl(CollectiveKind::kReduceScatter, kReduceStream, 50, 101, 400);
  s.range("FSDP::pre_backward (b)", 70, 130);
  s.range("FSDP::backward_prefetch for a", 80, 120);
  s.range("FSDP::all_gather (a)", 90, 110);
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 100, 402, 450);
  s.kernel(135, 136, 300);
  s.range("FSDP::pre_backward (a)", 140, 160);
  s.range("FSDP::all_gather_copy_out (a)", 145, 155);
  s.kernel(150, 450, 455);
  s.kernel(170, 455, 500);
  const Analysis result = s.analyzed();
  const UnitSpan& gather = span(result, "a", UnitSpan::Kind::kAllGather);
  EXPECT_EQ(gather.cause, ExposedCause::kQueued);
  ASSERT_FALSE(gather.proof.empty());
  EXPECT_EQ(gather.proof.back().what, "behind");
  EXPECT_EQ(gather.proof.back().when, (Interval{101 * kUs, 400 * kUs}));
}

// The all-gather's own copy-in comes before it in its stream, behind an all-gather that is itself
// behind a reduction. The host had issued both long before.
TEST(CausesTest, BehindACollectiveTogetherWithItsCopyInIsQueued) {
  DeviceStep s;
  s.begin();
  s.range("FSDP::post_backward_reduce (z)", 40, 60);
  s.nccl(CollectiveKind::kReduceScatter, kReduceStream, 50, 101, 400);
  s.range("FSDP::pre_backward (b)", 70, 130);
  s.range("FSDP::all_gather (c)", 71, 79);
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 75, 402, 450);
  s.range("FSDP::backward_prefetch for a", 80, 120);
  s.range("FSDP::all_gather (a)", 90, 110);
  s.kernel(95, 450, 454, kGatherStream);
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 105, 455, 500);
  s.kernel(135, 136, 455);
  s.range("FSDP::pre_backward (a)", 140, 160);
  s.range("FSDP::all_gather_copy_out (a)", 145, 155);
  s.kernel(150, 500, 505);
  s.kernel(170, 505, 550);
  const Analysis result = s.analyzed();
  const UnitSpan& gather = span(result, "a", UnitSpan::Kind::kAllGather);
  EXPECT_EQ(gather.exposed, 45 * kUs);
  EXPECT_EQ(gather.cause, ExposedCause::kQueued);
  ASSERT_FALSE(gather.proof.empty());
  EXPECT_EQ(gather.proof.back().when, (Interval{101 * kUs, 400 * kUs}));
}

// The reduction's gradients were complete only at 200, long after the all-gather had ended: that
// one still ran when the host called the reduction, but did not delay it.
TEST(CausesTest, AReductionIsNotQueuedBehindWhatEndedBeforeItsGradients) {
  DeviceStep s;
  s.begin();
  s.range("FSDP::all_gather (b)", 40, 50);
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 45, 60, 150);
  s.kernel(55, 100, 200);
  s.range("FSDP::post_backward_reduce (a)", 60, 80);
  s.nccl(CollectiveKind::kReduceScatter, kReduceStream, 70, 202, 300);
  s.kernel(90, 202, 220);
  s.range("FSDP::post_backward_reduce", 95, 99);
  s.nccl(CollectiveKind::kReduceScatter, kReduceStream, 97, 402, 500);
  const Analysis result = s.analyzed();
  EXPECT_EQ(span(result, "a", UnitSpan::Kind::kReduceScatter).cause, ExposedCause::kBandwidth);
  EXPECT_EQ(span(result, "", UnitSpan::Kind::kReduceScatter).cause, ExposedCause::kLast);
}

// Of one size and rate; the second one was free to start when the first ended.
TEST(CausesTest, AStartWithoutAReasonIsNotKnown) {
  const auto cause = [](Nanoseconds first_end) {
    DeviceStep s;
    s.begin();
    s.range("FSDP::pre_forward (b)", 40, 80);
    s.range("FSDP::forward_prefetch for c", 41, 50);
    s.range("FSDP::all_gather (c)", 42, 48);
    s.nccl(CollectiveKind::kAllGather, kGatherStream, 45, 50, first_end, "dp", 7000);
    s.range("FSDP::forward_prefetch for a", 60, 75);
    s.range("FSDP::all_gather (a)", 61, 70);
    s.nccl(CollectiveKind::kAllGather, kGatherStream, 65, 650, 1150, "dp", 7000);
    s.kernel(82, 100, 800);
    s.range("FSDP::pre_forward (a)", 90, 95);
    s.range("FSDP::all_gather_copy_out (a)", 91, 94);
    s.kernel(92, 1150, 1160);
    s.kernel(97, 1160, 1200);
    return span(s.analyzed(), "a", UnitSpan::Kind::kAllGather).cause;
  };
  EXPECT_EQ(cause(550), ExposedCause::kUnknown);
  EXPECT_EQ(cause(649), ExposedCause::kQueued);
}

TEST(CausesTest, BandwidthNeedsTheBestRateOfItsSize) {
  const auto cause = [](Nanoseconds shortest) {
    DeviceStep s;
    s.begin();
    s.range("FSDP::pre_forward (b)", 40, 80);
    s.range("FSDP::forward_prefetch for a", 60, 75);
    s.range("FSDP::all_gather (a)", 61, 70);
    s.nccl(CollectiveKind::kAllGather, kGatherStream, 65, 70, 570, "dp", 7000);
    s.kernel(82, 100, 300);
    s.range("FSDP::pre_forward (a)", 90, 95);
    s.range("FSDP::all_gather_copy_out (a)", 91, 94);
    s.kernel(92, 570, 580);
    s.kernel(97, 580, 2000);
    s.range("FSDP::all_gather (c)", 600, 610);
    s.nccl(CollectiveKind::kAllGather, kGatherStream, 605, 610, 610 + shortest, "dp", 7000);
    return span(s.analyzed(), "a", UnitSpan::Kind::kAllGather).cause;
  };
  EXPECT_EQ(cause(480), ExposedCause::kBandwidth);
  EXPECT_EQ(cause(60), ExposedCause::kUnknown);
}

// Tensor parallel: the all-reduce needs the product before it, and the product after it needs the
// all-reduce. It belongs to the unit in whose forward it was called, and is none of FSDP's parts.
TEST(CausesTest, ACollectiveBetweenTwoKernelsIsADependency) {
  DeviceStep s;
  s.begin();
  s.range("FSDP::pre_forward (a)", 40, 45);
  s.kernel(50, 100, 200);
  s.nccl(CollectiveKind::kAllReduce, kTensorStream, 60, 201, 260, "tp");
  s.kernel(70, 261, 400);
  s.range("FSDP::post_forward (a)", 80, 85);
  const Analysis result = s.analyzed();
  const UnitSpan& reduce = span(result, "a", UnitSpan::Kind::kAllReduce);
  EXPECT_EQ(reduce.cause, ExposedCause::kDependency);
  EXPECT_EQ(reduce.part, UnitPart::kOther);
  EXPECT_EQ(reduce.name, "all_reduce (mesh_tp)");
  const auto& units = result.ranks[0].units;
  const auto a =
      std::find_if(units.begin(), units.end(), [](const auto& u) { return u.fqn == "a"; });
  ASSERT_NE(a, units.end());
  ASSERT_EQ(a->others.size(), 1U);
  EXPECT_EQ(a->others[0].name, "all_reduce (mesh_tp)");
  EXPECT_EQ(a->others[0].figures.exposed, 59 * kUs);
  EXPECT_FALSE(a->parts[static_cast<size_t>(UnitPart::kAllReduce)]);
}

// The prefetched all-gather would have been hidden, but the host launched the next product late.
TEST(CausesTest, ComputeThatTheHostLaunchedLateMakesTheHostLate) {
  DeviceStep s;
  s.begin();
  s.range("FSDP::pre_forward (b)", 40, 80);
  s.range("FSDP::forward_prefetch for a", 60, 75);
  s.range("FSDP::all_gather (a)", 61, 70);
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 65, 70, 270);
  s.kernel(290, 295, 600);
  s.range("FSDP::pre_forward (a)", 300, 310);
  s.range("FSDP::all_gather_copy_out (a)", 301, 309);
  s.kernel(305, 600, 610);
  const Analysis result = s.analyzed();
  const UnitSpan& gather = span(result, "a", UnitSpan::Kind::kAllGather);
  EXPECT_EQ(gather.exposed, 170 * kUs);
  EXPECT_EQ(gather.cause, ExposedCause::kLateHost);
  EXPECT_EQ(gather.proof.back().when.start, 290 * kUs);
}

// A rank whose clock is wrong seems to start late; then what remained does not fit the transfer.
TEST(CausesTest, ALateStartThatDoesNotFitTheTransferIsNoPeer) {
  const auto cause = [](Nanoseconds other_start, Nanoseconds other_end) {
    std::vector<trace::Trace> traces;
    for (int64_t rank = 0; rank < 2; ++rank) {
      TraceBuilder b(rank);
      b.step(1, 0, 9000 * kUs);
      b.communication({.fqn = "first", .issued = 1, .start = 1, .end = 10}, 1);
      b.communication({.fqn = "b",
                       .issued = 20,
                       .start = rank == 0 ? 100 * kUs : other_start,
                       .end = rank == 0 ? 1100 * kUs : other_end},
                      2);
      b.op("aten::mm", 8000 * kUs, 8100 * kUs);
      traces.push_back(b.finish());
    }
    AnalysisOptions options;
    options.detail = DetailLevel::kCollectives;
    const Analysis result = analyze(trace::Run::of(std::move(traces)), options);
    for (const UnitSpan& each : result.ranks[0].detail->spans) {
      if (each.owner == "b") {
        return each.cause;
      }
    }
    return std::optional<ExposedCause>();
  };
  EXPECT_EQ(cause(1000 * kUs, 1100 * kUs), ExposedCause::kPeer);
  EXPECT_NE(cause(1090 * kUs, 1900 * kUs), ExposedCause::kPeer);
}

// The transfer was fast on the other rank, but this rank's own part ended long after the last rank
// had begun: that is not the best rate of its size.
TEST(CausesTest, AnOwnPartThatTookLongerIsNotLimitedByBandwidth) {
  const auto reduction = [](Nanoseconds end, Nanoseconds last_start, Nanoseconds compute_end) {
    std::vector<trace::Trace> traces;
    for (int64_t rank = 0; rank < 2; ++rank) {
      TraceBuilder b(rank);
      b.step(1, 0, 20'000 * kUs);
      for (const Nanoseconds at : {10, 20, 30, 40}) {
        b.communication({.fqn = "first", .issued = at, .start = at * kUs, .end = (at + 5) * kUs},
                        1);
      }
      b.communication({.kind = CollectiveKind::kReduceScatter,
                       .fqn = "b",
                       .issued = 60 * kUs,
                       .start = rank == 0 ? 100 * kUs : last_start,
                       .end = rank == 0 ? end : last_start + 100 * kUs},
                      2);
      b.op("aten::mm", 110 * kUs, compute_end);
      b.op("aten::mm", 8000 * kUs, 8100 * kUs);
      b.communication({.kind = CollectiveKind::kReduceScatter,
                       .fqn = "c",
                       .issued = 8200 * kUs,
                       .start = 8200 * kUs,
                       .end = 8300 * kUs},
                      2);
      traces.push_back(b.finish());
    }
    AnalysisOptions options;
    options.explained = "b";
    options.detail = DetailLevel::kCollectives;
    const Analysis result = analyze(trace::Run::of(std::move(traces)), options);
    EXPECT_EQ(result.matching.clocks.at(0).offset, result.matching.clocks.at(1).offset);
    EXPECT_EQ(result.matching.clocks.at(0).collectives, 6);
    return span(result, "b", UnitSpan::Kind::kReduceScatter);
  };
  EXPECT_EQ(reduction(301 * kUs, 200 * kUs, 160 * kUs).cause, ExposedCause::kBandwidth);
  EXPECT_EQ(reduction(1000 * kUs, 200 * kUs, 160 * kUs).cause, ExposedCause::kUnknown);

  // 125 us exposed before the last rank began, 130 after it, of which its size's best needs 100:
  // neither is half.
  const UnitSpan mixed = reduction(1130 * kUs, 1000 * kUs, 885 * kUs);
  EXPECT_EQ(mixed.exposed, 255 * kUs);
  EXPECT_EQ(mixed.cause, ExposedCause::kUnknown);
  ASSERT_GE(mixed.proof.size(), 2U);
  const CauseProof& own = mixed.proof[mixed.proof.size() - 2];
  EXPECT_EQ(own.what, "ran with the last rank");
  EXPECT_EQ(own.when, (Interval{1000 * kUs, 1130 * kUs}));
  EXPECT_EQ(mixed.proof.back().what, "fastest of its size");
  EXPECT_EQ(mixed.proof.back().when.length(), 100 * kUs);
}

// One launch of a graph: its first event has a launch latency, and what passes between its events
// is no gap.
TEST(CausesTest, AGraphIsOneLaunchWithoutGaps) {
  TraceBuilder b;
  b.step(1, 0, 1000 * kUs);
  b.device(Category::kKernel, "before", kComputeStream, 0, 10 * kUs, 20 * kUs);
  b.device(Category::kKernel, "first", kComputeStream, 15 * kUs, 40 * kUs, 50 * kUs);
  const uint32_t graph = b.trace.events.back().correlation;
  for (const Nanoseconds start : {70, 100}) {
    b.device(Category::kKernel, "next", kComputeStream, -1, start * kUs, (start + 10) * kUs);
    b.trace.events.back().correlation = graph;
  }
  const RankAnalysis rank = analyze(trace::Run::of({b.finish()})).ranks.at(0);
  EXPECT_EQ(rank.launch.count, 2);
  EXPECT_EQ(rank.launch.latency_max, 25 * kUs);
  EXPECT_EQ(rank.idle.gap, 20 * kUs);  // 20 to 40: launched, the stream was free
  EXPECT_EQ(rank.idle.event_wait, 20 * kUs + 20 * kUs);
  EXPECT_EQ(rank.idle.graph, 40 * kUs);
}

// Without cuda_sync rows: launched at 5 on a free stream, but started only after the other stream's
// event.
TEST(CausesTest, WaitsOfStreamsAreInferredWithoutSyncRows) {
  TraceBuilder b;
  b.step(1, 0, 1000 * kUs);
  b.device(Category::kKernel, "source", kGatherStream, 0, 10 * kUs, 100 * kUs);
  b.device(Category::kKernel, "waits", kComputeStream, 5 * kUs, 104 * kUs, 200 * kUs);
  b.device(Category::kKernel, "late", kGatherStream, 195 * kUs, 203 * kUs, 210 * kUs);
  const Analysis result = analyze(trace::Run::of({b.finish()}));
  const IdleFigures& idle = result.ranks.at(0).idle;
  EXPECT_EQ(idle.event_wait, 4 * kUs);
  EXPECT_EQ(idle.inferred, 4 * kUs);
  EXPECT_EQ(idle.gap, 3 * kUs);
  EXPECT_TRUE(std::any_of(result.diagnostics.begin(), result.diagnostics.end(),
                          [](const trace::Diagnostic& d) {
                            return d.message.find("enable_cuda_sync_events") != std::string::npos;
                          }));
}

TEST(WasteTest, AUnitGatheredTwiceInOneForward) {
  DeviceStep s;
  s.begin();
  for (const Nanoseconds t : {100, 300}) {
    s.range("FSDP::pre_forward (a)", t, t + 20);
    s.range("FSDP::all_gather (a)", t + 1, t + 5);
    s.nccl(CollectiveKind::kAllGather, kGatherStream, t + 2, t + 10, t + 60);
    s.range("FSDP::all_gather_copy_out (a)", t + 6, t + 9);
    s.kernel(t + 7, t + 60, t + 61);
    s.kernel(t + 25, t + 61, t + 150);
    s.range("FSDP::post_forward (a)", t + 30, t + 32);
  }
  s.range("FSDP::post_forward", 400, 401);
  s.range("FSDP::pre_backward (a)", 500, 510);
  s.range("FSDP::post_backward_reshard (a)", 520, 530);
  const Analysis result = s.analyzed();
  const auto& waste = result.ranks[0].waste;
  ASSERT_EQ(waste.size(), 1U);
  EXPECT_EQ(waste[0].kind, WasteKind::kGatheredAgain);
  EXPECT_EQ(waste[0].where, "a");
  EXPECT_EQ(waste[0].count, 1);
  EXPECT_EQ(waste[0].lost, 50 * kUs);
  EXPECT_THAT(
      report::analysis_json(result),
      HasSubstr(R"("waste":[{"kind":"gathered_again","where":"a","count":1,"lost_ns":50000}])"));
  EXPECT_THAT(report::analysis_text(result, {}), HasSubstr("0.050 ms lost, 1 time (a)"));
}

// .item(): the host waits until 200 and launches again at 230; the device is idle until 235.
TEST(WasteTest, AWaitOfTheHostWithinAStep) {
  TraceBuilder b;
  b.step(1, 0, 1000 * kUs);
  b.device(Category::kKernel, "gemm", kComputeStream, 5 * kUs, 10 * kUs, 195 * kUs);
  b.op("aten::item", 20 * kUs, 210 * kUs);
  b.trace.add_complete(Category::kCudaRuntime, "cudaStreamSynchronize", b.main, 30 * kUs,
                       200 * kUs);
  b.device(Category::kKernel, "gemm", kComputeStream, 230 * kUs, 235 * kUs, 300 * kUs);
  const Analysis result = analyze(trace::Run::of({b.finish()}));
  const auto& waste = result.ranks[0].waste;
  ASSERT_EQ(waste.size(), 1U);
  EXPECT_EQ(waste[0].kind, WasteKind::kHostSync);
  EXPECT_EQ(waste[0].where, "cudaStreamSynchronize in aten::item");
  EXPECT_EQ(waste[0].lost, 40 * kUs);
}

// One backward of DDP with a bucket of three gradients, which are complete when their copies into
// the bucket end, at 220, 320 and 810; then its all-reduce runs until 911. `copied` is how long the
// last copy takes.
class BucketStep : public DeviceStep {
 public:
  explicit BucketStep(Nanoseconds copied = 10) { backward(0, 490, copied); }

  // From `at`, with `wait` between the last two gradients.
  void backward(Nanoseconds at, Nanoseconds wait, Nanoseconds copied) {
    range("DistributedDataParallel.forward", at + 1, at + 20);
    kernel(at + 5, at + 10, at + 100);
    gradient(at + 30, at + 100, at + 200, at + 220);
    gradient(at + 40, at + 220, at + 300, at + 320);
    const Nanoseconds last = at + 320 + wait;
    gradient(at + 50, at + 320, last - copied, last);
    op("c10d::allreduce_", at + 59, at + 65);
    nccl(CollectiveKind::kAllReduce, kReduceStream, at + 62, last + 1, last + 101);
    op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 55, at + 70);
    range("Optimizer.step#SGD.step", at + 75, at + 80);
    kernel(at + 76, last + 102, last + 150);
  }
  std::vector<Waste> waste() { return analyzed().ranks[0].waste; }

 private:
  void op(const char* name, Nanoseconds start, Nanoseconds end) {
    b.op(name, start * kUs, end * kUs);
  }
  // The node that computes it, and the copy, launched by the host from `host`.
  void gradient(Nanoseconds host, Nanoseconds start, Nanoseconds copied, Nanoseconds end) {
    op("autograd::engine::evaluate_function: ConvolutionBackward0", host, host + 4);
    kernel(host + 1, start, copied);
    op("torch::distributed::reducer::mul_out", host + 6, host + 8);
    kernel(host + 7, copied, end);
  }
};

// The bucket waits from 320 to 810, longer than half of 220 to 810 and than the all-reduce, 100 us,
// all exposed. Of the copies (20, 20, 10 us) 0.8 are of the gradients that were complete.
TEST(WasteTest, ABucketThatClosesLate) {
  BucketStep s;
  const auto waste = s.waste();
  ASSERT_EQ(waste.size(), 1U);
  EXPECT_EQ(waste[0].kind, WasteKind::kLateBucket);
  EXPECT_EQ(name_of(waste[0].kind), "late_bucket");
  EXPECT_EQ(waste[0].where, "bucket 0");
  EXPECT_EQ(waste[0].count, 1);
  EXPECT_EQ(waste[0].lost, 80 * kUs);
}

// The copies take 20, 20 and 40 us, so half of 100 us could be hidden. If they take 20, 20 and 160,
// it is a fifth, and reducing the others earlier would not help.
TEST(WasteTest, ALargeLastGradientCannotBeReducedEarlier) {
  BucketStep half(40);
  const auto waste = half.waste();
  ASSERT_EQ(waste.size(), 1U);
  EXPECT_EQ(waste[0].lost, 50 * kUs);
  BucketStep most(160);
  EXPECT_TRUE(most.waste().empty());
}

TEST(WasteTest, ABucketThatWaitsWhileAnotherIsReducedIsNotLate) {
  BucketStep s;
  s.nccl(CollectiveKind::kAllReduce, kReduceStream, 25, 400, 750);
  EXPECT_TRUE(s.waste().empty());
}

// Late in the first of two backwards; in the second the gap is no longer than the all-reduce.
TEST(WasteTest, ABucketThatIsLateOnceIsNot) {
  BucketStep s;
  s.backward(2000, 100, 10);
  EXPECT_TRUE(s.waste().empty());
  BucketStep both;
  both.backward(2000, 490, 10);
  const auto waste = both.waste();
  ASSERT_EQ(waste.size(), 1U);
  EXPECT_EQ(waste[0].count, 2);
  EXPECT_EQ(waste[0].lost, 160 * kUs);
}

TEST(GroupsTest, WhatRunsUnderWhat) {
  DeviceStep s;
  s.begin();                                                             // dp: 10 to 30
  s.nccl(CollectiveKind::kAllReduce, kTensorStream, 40, 90, 150, "tp");  // compute until 100
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 50, 120, 200);
  const Analysis result = s.analyzed();
  const auto& groups = result.ranks[0].groups;
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].name, "mesh_dp");
  EXPECT_EQ(groups[0].size, 4);
  EXPECT_EQ(groups[0].busy, 100 * kUs);
  EXPECT_EQ(groups[0].under_compute, 0);
  EXPECT_THAT(groups[0].under, ElementsAre(100 * kUs, 30 * kUs));
  EXPECT_EQ(groups[1].name, "mesh_tp");
  EXPECT_EQ(groups[1].under_compute, 10 * kUs);
  EXPECT_THAT(groups[1].under, ElementsAre(30 * kUs, 60 * kUs));
}

UnitFigures block(std::string fqn, Nanoseconds exposed) {
  UnitFigures unit;
  unit.fqn = std::move(fqn);
  PartFigures part;
  part.count = 1;
  part.exposed = part.busy = exposed;
  part.cause = ExposedCause::kBandwidth;
  unit.parts[0] = part;
  return unit;
}

TEST(BlocksTest, AnOutlierMayBeAnyBlock) {
  for (int at = 0; at < 8; ++at) {
    std::vector<UnitFigures> units;
    for (int i = 0; i < 8; ++i) {
      units.push_back(block("layers." + std::to_string(i), i == at ? 900 * kUs : (100 + i) * kUs));
    }
    const std::vector<BlockFigures> blocks = block_figures(units);
    ASSERT_EQ(blocks.size(), 1U);
    EXPECT_THAT(blocks[0].outliers, ElementsAre(static_cast<uint32_t>(at)));
  }
}

TEST(BlocksTest, BlocksAlikeHaveAMedianAWorstAndOutliers) {
  std::vector<UnitFigures> units{block("", 5 * kUs)};
  for (int i = 0; i < 8; ++i) {
    units.push_back(block("layers." + std::to_string(i), i == 5 ? 900 * kUs : (100 + i) * kUs));
  }
  units.push_back(block("vision.0", 1 * kUs));
  const std::vector<BlockFigures> blocks = block_figures(units);
  ASSERT_EQ(blocks.size(), 1U);
  EXPECT_EQ(blocks[0].name, "layers.0 to 7");
  EXPECT_EQ(blocks[0].units.size(), 8U);
  EXPECT_EQ(blocks[0].exposed.median, 103 * kUs);
  EXPECT_EQ(blocks[0].exposed.worst, 900 * kUs);
  EXPECT_EQ(units[blocks[0].exposed.worst_unit].fqn, "layers.5");
  ASSERT_EQ(blocks[0].outliers.size(), 1U);
  EXPECT_EQ(units[blocks[0].outliers[0]].fqn, "layers.5");

  Analysis analysis;
  RankAnalysis& rank = analysis.ranks.emplace_back();
  rank.units = units;
  rank.blocks = blocks;
  const std::string text = report::analysis_text(analysis, {});
  EXPECT_THAT(text, HasSubstr("layers.0 to 7 (others)"));
  EXPECT_THAT(text, HasSubstr("far from the other layers.0 to 7: layers.5 (0.900 ms)"));
  EXPECT_THAT(text, Not(HasSubstr("layers.3 ")));
  report::TextOptions each;
  each.each_unit = true;
  EXPECT_THAT(report::analysis_text(analysis, each), HasSubstr("layers.3 "));
}

// A reduction is not told to prefetch.
TEST(CausesTest, ARemedyFitsItsCollective) {
  EXPECT_THAT(std::string(remedy_of(ExposedCause::kHostIsCompute, UnitPart::kReduceScatter)),
              Not(HasSubstr("prefetch")));
  EXPECT_THAT(std::string(explanation_of(ExposedCause::kHostIsCompute)),
              Not(HasSubstr("prefetch")));
  EXPECT_THAT(std::string(remedy_of(ExposedCause::kHostIsCompute, UnitPart::kAllGatherForward)),
              HasSubstr("prefetch"));
}

TEST(GroupsTest, AGroupOfUnknownSizeIsUnknown) {
  TraceBuilder b;
  b.device(Category::kKernel, "ncclDevKernel_AllGather_RING_LL", kGatherStream, 5, 10, 20);
  EXPECT_EQ(make_timeline(b.trace).collectives.at(0).ranks, 0);  // the world has two
}

TEST(GroupsTest, Float8MessagesHaveASize) {
  DeviceStep s;
  s.nccl(CollectiveKind::kAllGather, kGatherStream, 5, 10, 20);
  s.b.trace.collectives[0].dtype = s.b.trace.strings.intern("Float8_e4m3fn");
  EXPECT_EQ(make_timeline(s.b.trace).collectives.at(0).bytes, 1000);
}

// Copy engines: peer copies under an operator of symmetric memory.
TEST(GroupsTest, PeerCopiesUnderSymmetricMemoryCommunicate) {
  TraceBuilder b;
  b.op("symm_mem::fused_all_gather_matmul", 0, 100);
  b.device(Category::kGpuMemcpy, "Memcpy PtoP (Device -> Device)", kGatherStream, 10, 20, 30);
  b.device(Category::kGpuMemcpy, "Memcpy PtoP (Device -> Device)", kGatherStream, 200, 210, 220);
  const Timeline t = make_timeline(b.trace);
  ASSERT_EQ(t.collectives.size(), 1U);
  EXPECT_EQ(t.collectives[0].kind, CollectiveKind::kAllGather);
}

// NCCL runs an all-to-all as sends and receives.
TEST(GroupsTest, SendsUnderAnAllToAllAreOne) {
  TraceBuilder b;
  b.range("nccl:all_to_all", 0, 100);
  b.device(Category::kKernel, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", kGatherStream, 10,
           20, 30);
  EXPECT_EQ(make_timeline(b.trace).collectives.at(0).kind, CollectiveKind::kAllToAll);
}

}  // namespace
}  // namespace shardlens::analysis
