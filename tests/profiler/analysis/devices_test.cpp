// Traces whose device work is missing, in parts or of another kind than CUDA's.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "profiler/analysis/analysis.h"
#include "profiler/report/analysis_report.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/run.h"
#include "tests/profiler/analysis/trace_builder.h"

namespace shardlens::analysis {
namespace {

using test::TraceBuilder;
using testing::HasSubstr;
using testing::IsEmpty;
using trace::Category;

Analysis analysis_of(trace::Trace trace, const AnalysisOptions& options = {}) {
  std::vector<trace::Trace> traces;
  traces.push_back(std::move(trace));
  return analyze(trace::Run::of(std::move(traces)), options);
}

std::string messages(const Analysis& analysis) {
  std::string out;
  for (const trace::Diagnostic& d : analysis.diagnostics) {
    out += d.message + "\n";
  }
  return out;
}

// Two steps of one kernel each, 50 us long, launched by calls of the category.
std::string launched_by(const std::string& category) {
  std::string events;
  for (int step = 1; step <= 2; ++step) {
    const int at = 400 * (step - 1);
    events += R"({"ph":"X","cat":"user_annotation","name":"ProfilerStep#)" + std::to_string(step) +
              R"(","pid":9,"tid":9,"ts":)" + std::to_string(at) + R"(,"dur":400,"args":{}},)" +
              R"({"ph":"X","cat":")" + category + R"(","name":"launch","pid":9,"tid":9,"ts":)" +
              std::to_string(at + 80) + R"(,"dur":2,"args":{"correlation":)" +
              std::to_string(step) + R"(}},{"ph":"X","cat":"kernel","name":"gemm","pid":0,)" +
              R"("tid":0,"ts":)" + std::to_string(at + 100) +
              R"(,"dur":50,"args":{"device":0,"stream":0,"correlation":)" + std::to_string(step) +
              "}}" + (step == 1 ? "," : "");
  }
  return R"({"distributedInfo":{"rank":0,"world_size":2},"traceEvents":[)" + events + "]}";
}

// As Kineto names the activities of other devices' runtimes.
TEST(DevicesTest, CallsOfEveryRuntimeAreLaunches) {
  const Analysis cuda = analysis_of(trace::parse_kineto(launched_by("cuda_runtime"), "t.json"));
  ASSERT_EQ(cuda.ranks.at(0).steps.size(), 2U);
  for (const char* category :
       {"cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime", "privateuse1_runtime",
        "privateuse1_driver", "hip_runtime", "hip_driver", "glow_runtime"}) {
    const trace::Trace trace = trace::parse_kineto(launched_by(category), "t.json");
    EXPECT_EQ(trace.category(trace.events.at(1)), category);
    const Analysis found = analysis_of(trace);
    EXPECT_EQ(report::analysis_json(found), report::analysis_json(cuda)) << category;
  }
}

TEST(DevicesTest, AHostTraceOfARunOnNcclHasNoFigures) {
  TraceBuilder b;
  b.step(1, 0, 1000);
  b.op("aten::mm", 0, 400);
  b.range("nccl:all_reduce", 300, 500);
  const Analysis found = analysis_of(b.finish());
  const RankAnalysis& rank = found.ranks.at(0);
  EXPECT_EQ(rank.figures.compute, 0);
  EXPECT_EQ(rank.figures.comm, 0);
  EXPECT_EQ(rank.figures.duration(), 0);
  EXPECT_THAT(rank.units, IsEmpty());
  EXPECT_THAT(messages(found), HasSubstr("the trace has no kernels, although NCCL ran "
                                         "(nccl:all_reduce)"));
  EXPECT_THAT(messages(found), HasSubstr("ProfilerActivity.CUDA"));
  const std::string text = report::analysis_text(found, {});
  EXPECT_THAT(text, HasSubstr("rank 0: no kernels in the trace, so no figures"));
  EXPECT_THAT(text, Not(HasSubstr("hidden under compute")));
}

TEST(DevicesTest, CallsOnABackendOfADeviceAreEnough) {
  TraceBuilder b;
  b.trace.metadata.backend = "xccl";
  b.op("aten::mm", 0, 400);
  b.op("c10d::allreduce_", 400, 420);
  EXPECT_THAT(messages(analysis_of(b.finish())), HasSubstr("ProfilerActivity.XPU"));
}

TEST(DevicesTest, LaunchesWithoutTheirKernelsHaveNoFigures) {
  TraceBuilder b;
  b.op("aten::mm", 0, 400);
  b.trace.add_complete(Category::kCudaRuntime, "cudaLaunchKernel", b.main, 100, 110);
  b.device(Category::kGpuMemcpy, "Memcpy HtoD", 7, 200, 210, 220);
  const Analysis found = analysis_of(b.finish());
  EXPECT_EQ(found.ranks.at(0).figures.duration(), 0);
  EXPECT_THAT(messages(found), HasSubstr("kernels were launched (cudaLaunchKernel)"));
}

// gloo runs on the host: its run is read as before.
TEST(DevicesTest, AHostTraceOfARunOnGlooHasFigures) {
  TraceBuilder b;
  b.trace.metadata.backend = "cpu:gloo,cuda:nccl";
  b.op("aten::mm", 0, 400);
  b.range("gloo:all_reduce", 300, 400);
  const Analysis found = analysis_of(b.finish());
  EXPECT_EQ(found.ranks.at(0).figures.compute, 400);
  EXPECT_EQ(found.ranks.at(0).figures.comm, 100);
  EXPECT_THAT(messages(found), Not(HasSubstr("no kernels")));
}

trace::Trace on_two_devices(Nanoseconds on_the_other) {
  TraceBuilder b;
  b.device(Category::kKernel, "gemm", 7, 0, 1000, 1000 + 1'000'000);
  const uint32_t other = b.trace.add_complete(Category::kKernel, "fill", b.trace.track(1, 7), 5000,
                                              5000 + on_the_other);
  b.trace.events[other].correlation = 0;
  return b.finish();
}

TEST(DevicesTest, AProcessThatDroveTwoDevicesIsRefusedOrReadByDevice) {
  try {
    (void)analysis_of(on_two_devices(500'000));
    FAIL() << "the union of two devices is of no rank";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("kernels on the devices 0, 1"));
    EXPECT_THAT(error.what(), HasSubstr("--device N"));
  }
  AnalysisOptions options;
  options.timeline.device = 1;
  EXPECT_EQ(analysis_of(on_two_devices(500'000), options).ranks.at(0).figures.compute, 500'000);
  options.timeline.device = 0;
  EXPECT_EQ(analysis_of(on_two_devices(500'000), options).ranks.at(0).figures.compute, 1'000'000);
  options.timeline.device = 2;
  EXPECT_THROW((void)analysis_of(on_two_devices(500'000), options), InputError);
}

TEST(DevicesTest, AnAccidentOnAnotherDeviceIsLeftOut) {
  const Analysis found = analysis_of(on_two_devices(2000));
  EXPECT_EQ(found.ranks.at(0).figures.compute, 1'000'000);
  EXPECT_THAT(messages(found), HasSubstr("kernels of device 1 are left out"));
}

TEST(DevicesTest, ATraceOfAnotherProgramHasNoKnownCategory) {
  const Analysis found = analysis_of(trace::parse_kineto(
      R"([{"ph":"X","cat":"async_npu","name":"a","pid":1,"tid":1,"ts":0,"dur":5},
          {"ph":"X","name":"b","pid":1,"tid":1,"ts":0,"dur":5}])",
      "rank0.json"));
  EXPECT_THAT(messages(found), HasSubstr("categories in the trace: 'async_npu', (none)"));
}

}  // namespace
}  // namespace shardlens::analysis
