// Traces that are larger or stranger than recorded ones: the analysis stays linear, and no sum
// overflows (which the sanitizers' build would report).
#include <ctime>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "profiler/analysis/analysis.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "tests/profiler/analysis/trace_builder.h"
#include "tests/support/sanitized.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using trace::Category;

// CPU seconds of reading or of the analysis; quadratic, each of the traces below takes ten or more.
double analysis_seconds(trace::Trace trace) {
  std::vector<trace::Trace> traces;
  traces.push_back(std::move(trace));
  const trace::Run run = trace::Run::of(std::move(traces));
  const std::clock_t begin = std::clock();
  EXPECT_EQ(analyze(run).ranks.size(), 1U);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}
constexpr double kLinear = test::kSanitized ? 40 : 5;

TEST(HostileTraceTest, SixteenThousandUnits) {
  TraceBuilder b;
  b.op("aten::mm", 0, 5);
  b.range("FSDP::root_pre_forward", 5, 6);
  Nanoseconds now = 10;
  for (int i = 0; i < 16'000; ++i, now += 10) {
    b.range(fmt::format("FSDP::pre_forward (layers.{}.mlp)", i), now, now + 2);
    b.range(fmt::format("FSDP::post_forward (layers.{}.mlp)", i), now + 4, now + 6);
  }
  for (int i = 16'000; i-- > 0; now += 10) {
    b.range(fmt::format("FSDP::pre_backward (layers.{}.mlp)", i), now, now + 2);
    b.range(fmt::format("FSDP::post_backward_reduce (layers.{}.mlp)", i), now + 4, now + 6);
  }
  EXPECT_LT(analysis_seconds(b.finish()), kLinear);
}

TEST(HostileTraceTest, FortyThousandNestedRanges) {
  constexpr int kRanges = 40'000;
  TraceBuilder b;
  for (int i = 0; i < kRanges; ++i) {
    b.range("nccl:something", 10 * i, 30 * kRanges - 10 * i);
  }
  for (int i = 0; i < 2 * kRanges; ++i) {  // launched within the ranges, and after all of them
    const Nanoseconds launched = 10 * i + 5 + (i < kRanges ? 0 : 40 * kRanges);
    b.device(Category::kKernel, "ncclDevKernel_AllGather", 7, launched, launched + 1, launched + 3);
  }
  EXPECT_LT(analysis_seconds(b.finish()), kLinear);
}

TEST(HostileTraceTest, EightyThousandNormsAfterBackward) {
  TraceBuilder b;
  b.range("FSDP::root_pre_forward", 0, 1);
  b.range("FSDP::pre_forward (a)", 2, 3);
  b.range("FSDP::post_forward (a)", 4, 5);
  b.range("FSDP::pre_backward (a)", 6, 7);
  b.range("FSDP::post_backward_reshard (a)", 8, 9);
  for (int i = 0; i < 80'000; ++i) {
    b.op("aten::linalg_vector_norm", 20 + 4 * i, 22 + 4 * i);
  }
  b.range("Optimizer.step#AdamW.step", 500'000, 500'010);
  EXPECT_LT(analysis_seconds(b.finish()), kLinear);
}

// Each step lasts from its begin to the end of the trace: it ends where the next one begins.
TEST(HostileTraceTest, FortyThousandStepsAtOnce) {
  TraceBuilder b;
  for (int i = 0; i < 40'000; ++i) {
    b.step(i, 20 * i, 1'000'000);
    b.op("aten::mm", 20 * i + 1, 20 * i + 6);
  }
  EXPECT_LT(analysis_seconds(b.finish()), kLinear);
}

// Waits of the host that begin one after the other, and end between launches of short kernels.
TEST(HostileTraceTest, AHundredThousandWaitsAtOnce) {
  constexpr int kWaits = 100'000;
  TraceBuilder b;
  for (int i = 0; i < kWaits; ++i) {
    b.device(Category::kKernel, "gemm", 7, 10 * i, 10 * i + 1, 10 * i + 4);
    b.trace.add_complete(Category::kCudaRuntime, "cudaStreamSynchronize", b.main, i, 10 * i + 2);
  }
  EXPECT_LT(analysis_seconds(b.finish()), kLinear);
}

// Times, durations and sizes near the end of 64 bits: events whose sums would not fit are left out.
TEST(HostileTraceTest, AHundredThousandProcesses) {
  std::string json = R"({"traceEvents": [)";
  for (int i = 0; i < 50'000; ++i) {
    json += fmt::format(
        R"({{"ph": "M", "name": "process_name", "pid": {0}, "args": {{"name": "number {0}"}}}},
           {{"ph": "M", "name": "process_labels", "pid": "{0}", "args": {{"labels": "text {0}"}}}},
           {{"ph": "M", "name": "process_sort_index", "pid": {0}, "args": {{"sort_index": {0}}}}},)",
        i);
  }
  json.back() = ']';
  const std::clock_t begin = std::clock();
  const trace::Trace trace = trace::parse_kineto(json + "}", "hostile");
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, kLinear);
  ASSERT_EQ(trace.processes.size(), 100'000U);
  EXPECT_EQ(trace.processes[84'002].name, "number 42001");
  EXPECT_EQ(trace.processes[84'002].sort_index, 42'001);
  EXPECT_EQ(trace.processes[84'003].labels, "text 42001");
  EXPECT_TRUE(trace.processes[84'003].pid_is_text);
}

TEST(HostileTraceTest, NumbersAtTheEndOf64Bits) {
  std::string events;
  const auto add = [&](const char* start, const char* duration) {
    events += fmt::format(
        R"({}{{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather", "pid": 0, "tid": 7,
            "ts": {}, "dur": {}, "args": {{"stream": 7, "Collective name": "_allgather_base",
            "dtype": "Double", "In msg nelems": 9223372036854775807, "Seq": 1,
            "Out msg nelems": 9223372036854775807, "Group size": 9223372036854775807,
            "Process Group Name": "0"}}}})",
        events.empty() ? "" : ",\n", start, duration);
  };
  add("9223372036854770", "5");  // after the year 2043
  add("-9223372036854770", "5");
  for (int i = 0; i < 5; ++i) {
    add("-2305843009213693", "2305843009213693");  // the first is the longest that fits
    add("2305843009213000", "5");
  }
  const std::string json =
      R"({"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": [)" + events + "]}";
  std::vector<trace::Trace> traces;
  traces.push_back(trace::parse_kineto(json, "hostile"));
  EXPECT_LE(traces[0].events.size(), 6U);
  traces.push_back(trace::parse_kineto(json, "hostile"));
  traces[1].metadata.rank = 1;
  const Analysis result = analyze(trace::Run::of(std::move(traces)));
  for (const RankAnalysis& rank : result.ranks) {
    const WindowFigures& f = rank.figures;
    EXPECT_GE(f.comm, 0);
    EXPECT_GE(f.idle, 0);
    EXPECT_GE(f.collectives.at(CollectiveKind::kAllGather).bytes, 0);
  }
}

}  // namespace
}  // namespace shardlens::analysis
