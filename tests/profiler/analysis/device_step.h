#pragma once

#include <string>
#include <string_view>

#include "profiler/analysis/analysis.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::test {

inline constexpr Nanoseconds kUs = 1000;
inline constexpr int64_t kComputeStream = 7, kGatherStream = 20, kReduceStream = 24,
                         kTensorStream = 28;

// A step of FSDP2 on a device; times in microseconds.
class DeviceStep {
 public:
  DeviceStep() { b.step(1, 0, 100'000 * kUs); }

  void range(const std::string& name, Nanoseconds start, Nanoseconds end) {
    b.range(name, start * kUs, end * kUs);
  }
  void kernel(Nanoseconds launched,
              Nanoseconds start,
              Nanoseconds end,
              int64_t stream = kComputeStream) {
    b.device(trace::Category::kKernel, "gemm", stream, launched * kUs, start * kUs, end * kUs);
  }
  void nccl(CollectiveKind kind,
            int64_t stream,
            Nanoseconds launched,
            Nanoseconds start,
            Nanoseconds end,
            std::string_view group = "dp",
            int64_t elements = 1000) {
    const auto event = static_cast<uint32_t>(b.trace.events.size());
    b.device(trace::Category::kKernel, std::string(kernel_name(kind)) + "_RING_LL", stream,
             launched * kUs, start * kUs, end * kUs);
    trace::CollectiveArgs args;
    args.collective = b.trace.strings.intern(kineto_name(kind));
    args.dtype = b.trace.strings.intern("BFloat16");
    args.group = b.trace.strings.intern(group);
    args.group_description = b.trace.strings.intern("mesh_" + std::string(group));
    args.group_size = 4;
    args.in_nelems = args.out_nelems = elements;
    args.sequence = sequence_++;
    b.trace.events[event].detail_kind = trace::ArgsKind::kCollective;
    b.trace.events[event].detail = static_cast<uint32_t>(b.trace.collectives.size());
    b.trace.collectives.push_back(args);
  }
  // The first all-gather of the step and compute after it, so that others are not the first.
  void begin() {
    range("FSDP::root_pre_forward", 1, 2);
    range("FSDP::pre_forward", 3, 20);
    range("FSDP::all_gather", 4, 8);
    nccl(CollectiveKind::kAllGather, kGatherStream, 5, 10, 30);
    range("FSDP::all_gather_copy_out", 9, 12);
    kernel(10, 30, 31);
    kernel(25, 31, 100);
  }
  analysis::Analysis analyzed() {
    analysis::AnalysisOptions options;
    options.detail = analysis::DetailLevel::kAll;
    options.explained = "a";
    return analyze(trace::Run::of({b.finish()}), options);
  }

  TraceBuilder b;

 private:
  int64_t sequence_ = 0;
};

}  // namespace shardlens::test
