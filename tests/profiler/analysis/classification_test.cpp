#include <gtest/gtest.h>
#include <re2/re2.h>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/timeline/timeline.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using trace::Category;

TEST(NamesTest, TellsCommunicationKernels) {
  using enum CollectiveKind;
  const std::vector<std::pair<const char*, std::optional<CollectiveKind>>> kernels{
      {"ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
       kAllReduce},
      {"ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
       kSendRecv},
      {"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", kAllGather},
      {"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
       kReduceScatter},
      {"ncclSymkDevKernel_AllGather_LL", kAllGather},
      {"ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", std::nullopt},
      {"void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(...)",
       kAllReduce},
      {"void (anonymous namespace)::multimem_all_gather_kernel<16>(...)", kAllGather},
      {"void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", kAllToAll},
      {"void dpsk::ep::combine<8>()", kAllToAll},
      {"void vllm::cross_device_reduce_2stage<half, 8>(...)", kAllReduce},
      // Names as their sources declare them; profiler/analysis/events/names.cpp lists these.
      {"void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<...>(...)",
       kAllReduce},
      {"void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<...>(...)",
       kAllReduce},
      {"void moereduce_allreduce_fusion_kernel_oneshot_lamport<...>(...)", kAllReduce},
      {"void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(AllReduceParams)", kAllReduce},
      {"void tensorrt_llm::kernels::lowPrecisionTwoShotAllReduceKernel<...>(...)", kAllReduce},
      {"void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<...>(...)",
       kAllReduce},
      {"void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<8, half>(...)", kAllReduce},
      {"void lamport_style_one_shot_all_reduce_norm_kernel<...>(...)", kAllReduce},
      {"void mscclpp::collective::allreduceAllPairs<(mscclpp::ReduceOp)0, half>(...)", kAllReduce},
      {"void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<half>, half>(...)",
       kAllReduce},
      {"oneccl_allreduce_pcie<sycl::half, 4>", kAllReduce},
      {"oneccl_allgatherv_pcie<sycl::half, 4>", kAllGather},
      {"oneccl_reduce_scatter_large_read<float, 4, 8>", kReduceScatter},
      {"void userbuffers_fp16_sum_inplace_gpu_rw<8>(...)", kAllReduce},
      {"void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(...)", kAllGather},
      {"void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<8, __nv_fp8_e4m3>(...)",
       kReduceScatter},
      {"kuserbuffers_pushsend(int*, int*, int*, int4*, int4*, int)", kSendRecv}};
  for (const auto& [name, kind] : kernels) {
    const auto found = communication_kernel(name);
    ASSERT_TRUE(found.has_value()) << name;
    EXPECT_EQ(found->kind, kind) << name;
  }
  for (const char* name : {"ampere_sgemm_128x64_nn", "reduce_scatter_bias_kernel", "Memcpy PtoP"}) {
    EXPECT_FALSE(communication_kernel(name).has_value()) << name;
  }
}

TEST(NamesTest, ReadsFsdpRanges) {
  EXPECT_EQ(parse_fsdp_range("FSDP::all_gather (layers.3)")->what, "all_gather");
  EXPECT_EQ(parse_fsdp_range("FSDP::all_gather (layers.3)")->fqn, "layers.3");
  EXPECT_EQ(parse_fsdp_range("FSDP::all_gather")->fqn, "");  // the root
  for (const char* unit : {" (layers.3)", ""}) {  // of a unit with several groups of parameters
    const std::string name = std::string("FSDP::post_backward_reduce") + unit + " [pg=4]";
    EXPECT_EQ(parse_fsdp_range(name)->what, "post_backward_reduce");
    EXPECT_EQ(parse_fsdp_range(name)->fqn, *unit == 0 ? "" : "layers.3");
    EXPECT_EQ(parse_fsdp_range(name)->ranks, 4);
  }
  EXPECT_EQ(parse_fsdp_range("FSDP::all_gather (layers.3)")->ranks, 0);
  EXPECT_EQ(parse_fsdp_range("FSDP::all_gather (layers.3) [pg=x]")->ranks, 0);
  EXPECT_EQ(parse_fsdp_range("FSDP::root_pre_forward")->fqn, std::nullopt);
  EXPECT_EQ(parse_fsdp_range("FSDP::backward_prefetch for layers.2")->what, "backward_prefetch");
  EXPECT_EQ(parse_fsdp_range("FSDP::backward_prefetch for layers.2")->fqn, "layers.2");
  EXPECT_EQ(without_wrappers("layers.0._checkpoint_wrapped_module.mlp"), "layers.0.mlp");
  EXPECT_EQ(without_wrappers("_orig_mod.norm, _orig_mod.head._fsdp_wrapped_module"), "norm, head");
  EXPECT_EQ(without_wrappers("_orig_mod"), "");
  EXPECT_EQ(parse_fsdp_range("FullyShardedDataParallel._pre_forward")->what, "_pre_forward");
  EXPECT_EQ(parse_fsdp_range("FullyShardedDataParallel._pre_forward")->fqn, std::nullopt);
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
  b.fsdp2("all_gather", "0", 0, 30);
  b.op("fsdp::all_gather_copy_in", 2, 8);
  b.op("aten::copy_", 3, 7);
  b.op("c10d::_allgather_base_", 10, 20);
  b.op("record_param_comms", 11, 19);
  b.fsdp2("post_backward_reduce", "0", 40, 60);
  b.op("aten::div_", 45, 50);
  b.op("aten::mm", 70, 80);
  const Timeline t = make_timeline(b.trace);
  EXPECT_EQ(t.copy, (IntervalSet{{2, 8}, {45, 50}}));
  EXPECT_EQ(t.compute, (IntervalSet{{70, 80}}));
}

TEST(ClassificationTest, WhatRunsOnACommunicatorsThreadIsPartOfTheCollective) {
  TraceBuilder b;
  const uint32_t gloo = b.trace.track(1, 99);
  b.gloo("all_gather", 10, 40);
  b.trace.add_complete(Category::kCpuOp, "aten::copy_", gloo, 20, 30);
  b.op("aten::mm", 0, 15);
  const Timeline t = make_timeline(b.trace);
  EXPECT_EQ(t.communication, (IntervalSet{{10, 40}}));
  EXPECT_EQ(t.compute, (IntervalSet{{0, 15}}));
  EXPECT_EQ(t.collectives.at(0).kind, CollectiveKind::kAllGather);
}

// Gloo's all-to-all of a list is a scatter from each rank: calls without a CollectiveKind, among
// which those of other collectives are found all the same.
TEST(ClassificationTest, CallsOfOtherKindsCountAmongThoseOfGloo) {
  for (const bool shown : {true, false}) {  // whether Gloo's thread shows the scatters
    TraceBuilder b;
    Nanoseconds at = 10;
    for (const std::string_view call : {"scatter_", "allreduce_", "scatter_", "send", "recv_"}) {
      b.op("c10d::" + std::string(call), at, at + 5);
      if (shown || call == "allreduce_") {
        b.gloo(call, at + 10, at + 20);
      }
      at += 30;
    }
    const Timeline t = make_timeline(b.trace);
    ASSERT_EQ(t.collectives.size(), shown ? 5U : 1U);
    const Collective& reduce = t.collectives[shown ? 1 : 0];
    EXPECT_EQ(reduce.kind, CollectiveKind::kAllReduce);
    EXPECT_EQ(reduce.issued, 40);
    for (const trace::Diagnostic& each : t.diagnostics) {
      EXPECT_EQ(each.message.find("calls of c10d in the trace"), std::string::npos);
    }
  }
}

TEST(ClassificationTest, GpuKernelsUnderFsdpRangesOfTheirLaunchAreCopies) {
  TraceBuilder b;
  b.fsdp2("all_gather_copy_out", "layers.0", 10, 20);
  b.device(Category::kKernel, "split_with_sizes_copy", 7, 12, 100, 110);
  b.device(Category::kKernel, "gemm", 7, 30, 110, 150);
  const Timeline t = make_timeline(b.trace);
  EXPECT_TRUE(t.device);
  EXPECT_EQ(t.copy, (IntervalSet{{100, 110}}));
  EXPECT_EQ(t.compute, (IntervalSet{{110, 150}}));
}

// FSDP1's forward contains the module's forward, which contains those of inner units.
TEST(ClassificationTest, Fsdp1sOwnWorkIsCopiedAndTheModulesComputes) {
  TraceBuilder b;
  b.fsdp1("forward", 0, 100);
  b.fsdp1("_pre_forward", 10, 20);
  b.device(Category::kKernel, "cat", 7, 12, 200, 210);
  b.device(Category::kKernel, "gemm", 7, 30, 210, 250);
  const Timeline t = make_timeline(b.trace);
  EXPECT_EQ(t.copy, (IntervalSet{{200, 210}}));
  EXPECT_EQ(t.compute, (IntervalSet{{210, 250}}));
}

TEST(ClassificationTest, GpuCollectivesGetTheUnitOfTheRangeThatLaunchedThem) {
  TraceBuilder b;
  b.fsdp2("pre_backward", "layers.1", 0, 50);
  b.range("FSDP::backward_prefetch for layers.0", 10, 40);
  b.fsdp2("all_gather", "layers.0", 20, 30);
  b.device(Category::kKernel, "ncclDevKernel_AllGather_RING_LL(x)", 20, 25, 100, 150);
  const Timeline t = make_timeline(b.trace);
  const Collective& c = t.collectives.at(0);
  ASSERT_TRUE(c.unit.has_value());
  EXPECT_EQ(t.units.at(*c.unit), "layers.0");
  EXPECT_EQ(c.part, UnitPart::kAllGatherBackward);
  EXPECT_EQ(c.issued_by, schedule::Cause::kBackwardPrefetch);
  EXPECT_EQ(c.issued, 25);
}

// RCCL's kernels name no collective and have no arguments; those of the record_param_comms around
// the launch are used.
TEST(ClassificationTest, ArgumentsOfAKernelMayStandAtItsCall) {
  TraceBuilder b;
  trace::CollectiveArgs args;
  args.collective = b.trace.strings.intern("_allgather_base");
  args.dtype = b.trace.strings.intern("BFloat16");
  args.in_nelems = 10;
  args.out_nelems = 80;
  b.range("nccl:_all_gather_base", 0, 20);
  const uint32_t call = b.trace.add_complete(Category::kCpuOp, "record_param_comms", b.main, 1, 19);
  b.trace.events[call].detail_kind = trace::ArgsKind::kCollective;
  b.trace.events[call].detail = 0;
  b.trace.collectives.push_back(args);
  b.device(Category::kKernel, "ncclDevKernel_Generic(x)", 7, 5, 100, 110);
  b.range("nccl:all_reduce", 30, 40);
  b.device(Category::kKernel, "ncclDevKernel_Generic(x)", 7, 35, 200, 210);
  b.device(Category::kKernel, "ncclDevKernel_Generic(x)", 7, 50, 300, 310);
  const Timeline t = make_timeline(b.trace);
  ASSERT_EQ(t.collectives.size(), 3U);
  EXPECT_EQ(t.collectives[0].kind, CollectiveKind::kAllGather);
  EXPECT_EQ(t.collectives[0].bytes, 160);
  EXPECT_EQ(t.collectives[1].kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(t.collectives[1].bytes, 0);
  EXPECT_EQ(t.collectives[2].kind, std::nullopt);
}

// See [Note: Copy-engine collectives].
TEST(ClassificationTest, PeerCopiesUnderACollectiveCommunicate) {
  TraceBuilder b;
  b.range("nccl:_all_gather_base", 0, 20);
  b.device(Category::kGpuMemcpy, "Memcpy PtoP (Device -> Device)", 7, 5, 100, 110);
  b.device(Category::kGpuMemcpy, "Memcpy DtoD (Device -> Device)", 7, 6, 110, 120);
  b.device(Category::kGpuMemcpy, "Memcpy PtoP (Device -> Device)", 7, 30, 200, 210);
  b.fsdp2("all_gather", "a", 40, 50);
  b.device(Category::kGpuMemcpy, "Memcpy PtoP (Device -> Device)", 7, 45, 300, 310);
  const Timeline t = make_timeline(b.trace);
  EXPECT_EQ(t.communication, (IntervalSet{{100, 110}, {300, 310}}));
  EXPECT_EQ(t.copy, (IntervalSet{{110, 120}, {200, 210}}));
  EXPECT_EQ(t.collectives[0].kind, CollectiveKind::kAllGather);
  EXPECT_EQ(t.collectives[1].kind, CollectiveKind::kAllGather);
}

TEST(ClassificationTest, ACustomKernelCommunicatesWhenItsNameIsGiven) {
  TraceBuilder b;
  b.device(Category::kKernel, "exchange::dispatch", 7, -1, 0, 10);
  b.device(Category::kKernel, "gemm", 8, -1, 5, 20);
  EXPECT_TRUE(make_timeline(b.trace).communication.empty());
  TimelineOptions options;
  options.communication = std::make_shared<const re2::RE2>("exchange::");
  const Timeline t = make_timeline(b.trace, options);
  EXPECT_EQ(t.communication, (IntervalSet{{0, 10}}));
  EXPECT_EQ(t.compute, (IntervalSet{{5, 20}}));
  EXPECT_EQ(t.collectives.at(0).kind, std::nullopt);
}

}  // namespace
}  // namespace shardlens::analysis
