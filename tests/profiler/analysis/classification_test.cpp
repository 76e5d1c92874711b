#include <gtest/gtest.h>

#include "profiler/analysis/names.h"
#include "profiler/analysis/timeline.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using trace::Category;

TEST(NamesTest, TellsCommunicationKernels) {
  for (const char* name :
       {"ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL", "void ncclDevKernel_Generic()"}) {
    EXPECT_TRUE(is_communication_kernel(name)) << name;
  }
  EXPECT_FALSE(is_communication_kernel("ampere_sgemm_128x64_nn"));
}

TEST(NamesTest, ReadsFsdpRanges) {
  EXPECT_EQ(parse_fsdp_range("FSDP::all_gather (layers.3)")->what, "all_gather");
  EXPECT_EQ(parse_fsdp_range("FSDP::all_gather (layers.3)")->fqn, "layers.3");
  EXPECT_EQ(parse_fsdp_range("FSDP::all_gather")->fqn, "");  // the root
  EXPECT_EQ(parse_fsdp_range("FSDP::root_pre_forward")->fqn, std::nullopt);
  EXPECT_EQ(parse_fsdp_range("FSDP::backward_prefetch for layers.2")->what, "backward_prefetch");
  EXPECT_EQ(parse_fsdp_range("FSDP::backward_prefetch for layers.2")->fqn, "layers.2");
  EXPECT_FALSE(parse_fsdp_range("Optimizer.step#AdamW.step").has_value());
  EXPECT_EQ(parse_profiler_step("ProfilerStep#12"), 12);
  EXPECT_EQ(parse_profiler_step("ProfilerStep#"), std::nullopt);
}

// See [Note: Leaf operators].
TEST(ClassificationTest, LeafOperatorsAreCompute) {
  TraceBuilder b;
  b.op("autograd::engine::evaluate_function: AddmmBackward0", 0, 100);
  b.op("AddmmBackward0", 5, 95);
  b.op("aten::linear", 10, 60);  // contains an operator that computes
  b.op("aten::t", 11, 13);
  b.op("aten::addmm", 20, 50);  // contains helpers only
  b.op("aten::expand", 21, 22);
  b.op("aten::copy_", 23, 25);
  b.op("aten::mul", 70, 80);
  const Timeline t = make_timeline(b.trace);
  EXPECT_FALSE(t.device);
  EXPECT_EQ(t.compute, (IntervalSet{{11, 13}, {20, 50}, {70, 80}}));
  EXPECT_TRUE(t.copy.empty());
}

TEST(ClassificationTest, FsdpsOwnCopiesAndC10dCallsAreNoCompute) {
  TraceBuilder b;
  b.range("FSDP::all_gather (0)", 0, 30);
  b.op("fsdp::all_gather_copy_in", 2, 8);
  b.op("aten::copy_", 3, 7);
  b.op("c10d::_allgather_base_", 10, 20);
  b.op("record_param_comms", 11, 19);
  b.range("FSDP::post_backward_reduce (0)", 40, 60);
  b.op("aten::div_", 45, 50);
  b.op("aten::mm", 70, 80);
  const Timeline t = make_timeline(b.trace);
  EXPECT_EQ(t.copy, (IntervalSet{{2, 8}, {45, 50}}));
  EXPECT_EQ(t.compute, (IntervalSet{{70, 80}}));
}

TEST(ClassificationTest, WhatRunsOnACommunicatorsThreadIsPartOfTheCollective) {
  TraceBuilder b;
  const uint32_t gloo = b.trace.track(1, 99);
  b.trace.add_complete(Category::kUserAnnotation, "gloo:all_gather", gloo, 10, 40);
  b.trace.add_complete(Category::kCpuOp, "aten::copy_", gloo, 20, 30);
  b.op("aten::mm", 0, 15);
  const Timeline t = make_timeline(b.trace);
  EXPECT_EQ(t.communication, (IntervalSet{{10, 40}}));
  EXPECT_EQ(t.compute, (IntervalSet{{0, 15}}));
  EXPECT_EQ(t.collectives.at(0).kind, CollectiveKind::kAllGather);
}

TEST(ClassificationTest, GpuKernelsUnderFsdpRangesOfTheirLaunchAreCopies) {
  TraceBuilder b;
  b.range("FSDP::all_gather_copy_out (layers.0)", 10, 20);
  b.device(Category::kKernel, "split_with_sizes_copy", 7, 12, 100, 110);
  b.device(Category::kKernel, "gemm", 7, 30, 110, 150);
  const Timeline t = make_timeline(b.trace);
  EXPECT_TRUE(t.device);
  EXPECT_EQ(t.copy, (IntervalSet{{100, 110}}));
  EXPECT_EQ(t.compute, (IntervalSet{{110, 150}}));
}

TEST(ClassificationTest, GpuCollectivesGetTheUnitOfTheRangeThatLaunchedThem) {
  TraceBuilder b;
  b.range("FSDP::pre_backward (layers.1)", 0, 50);
  b.range("FSDP::backward_prefetch for layers.0", 10, 40);
  b.range("FSDP::all_gather (layers.0)", 20, 30);
  b.device(Category::kKernel, "ncclDevKernel_AllGather_RING_LL(x)", 20, 25, 100, 150);
  const Timeline t = make_timeline(b.trace);
  const Collective& c = t.collectives.at(0);
  ASSERT_TRUE(c.unit.has_value());
  EXPECT_EQ(t.units.at(*c.unit), "layers.0");
  EXPECT_EQ(c.part, UnitPart::kAllGatherBackward);
  EXPECT_EQ(c.issued_by, schedule::Cause::kBackwardPrefetch);
  EXPECT_EQ(c.issued, 25);
}

TEST(ClassificationTest, ACustomKernelCommunicatesWhenItsNameIsGiven) {
  TraceBuilder b;
  b.device(Category::kKernel, "dpsk::ep::dispatch", 7, -1, 0, 10);
  b.device(Category::kKernel, "gemm", 8, -1, 5, 20);
  EXPECT_TRUE(make_timeline(b.trace).communication.empty());
  TimelineOptions options;
  options.communication = std::regex("ep::");
  const Timeline t = make_timeline(b.trace, options);
  EXPECT_EQ(t.communication, (IntervalSet{{0, 10}}));
  EXPECT_EQ(t.compute, (IntervalSet{{5, 20}}));
  EXPECT_EQ(t.collectives.at(0).kind, std::nullopt);
}

}  // namespace
}  // namespace shardlens::analysis
