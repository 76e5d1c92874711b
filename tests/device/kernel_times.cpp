// Records a known sequence of kernels between two CUDA events through CUPTI. The trace must have
// every kernel that was launched, and its times must be within 1 % of the events' elapsed time.
//
//   kernel_times      prints one line of JSON; exit 0: passed, 1: failed, 77: there is no GPU

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "core/base/error.h"
#include "core/dist/delay_kernel.h"
#include "profiler/record/device/device_tracer.h"
#include "profiler/record/host/finish.h"
#include "profiler/record/host/spool_recorder.h"
#include "profiler/trace/run.h"

namespace shardlens {
namespace {

constexpr int kKernels = 1000;
constexpr Nanoseconds kDuration = 500'000;  // so long that the gaps between kernels do not matter
constexpr double kTolerance = 0.01;

void check(cudaError_t error) {
  if (error != cudaSuccess) {
    throw RuntimeFault(cudaGetErrorString(error));
  }
}

// Runs the kernels; returns the milliseconds that the device took.
double run_kernels(cudaStream_t stream) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  dist::DelayLaunch launch;
  launch.kind = CollectiveKind::kAllReduce;
  launch.duration = kDuration;
  launch.stream = stream;
  check(cudaEventRecord(begin, stream));
  for (int i = 0; i < kKernels; ++i) {
    dist::launch_delay(launch);
  }
  check(cudaEventRecord(end, stream));
  check(cudaEventSynchronize(end));
  float elapsed = 0;
  check(cudaEventElapsedTime(&elapsed, begin, end));
  return elapsed;
}

std::filesystem::path record(const std::filesystem::path& directory, double& elapsed_ms) {
  record::SpoolOptions options;
  options.directory = directory;
  record::SpoolRecorder recorder(options);
  const auto tracer = record::start_cupti(recorder);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  dist::DelayLaunch warm_up;
  warm_up.stream = stream;
  dist::launch_delay(warm_up);  // compiles the kernel
  check(cudaStreamSynchronize(stream));
  recorder.step_begin(0);
  tracer->enable(true);
  tracer->begin_window();
  elapsed_ms = run_kernels(stream);
  tracer->end_window();
  recorder.step_end();
  static_cast<void>(tracer->finish(/*wait=*/true));
  return record::finish_trace(recorder);
}

bool is_near(double value, double expected) {
  return std::abs(value - expected) <= kTolerance * expected;
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    fmt::print(stderr, "kernel_times: CUDA found no usable GPU on this machine\n");
    return 77;
  }
  std::string name = (std::filesystem::temp_directory_path() / "shardlens-times-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw RuntimeFault("cannot make " + name);
  }
  double elapsed_ms = 0;
  const trace::Run run = trace::Run::open(record(name, elapsed_ms));
  std::filesystem::remove_all(name);
  int64_t kernels = 0;
  Nanoseconds sum = 0, first = 0, last = 0;
  for (const trace::Event& event : run.traces.front().events) {
    if (event.category == trace::Category::kKernel) {
      first = kernels == 0 ? event.start : std::min(first, event.start);
      last = std::max(last, event.end());
      sum += event.duration;
      ++kernels;
    }
  }
  nlohmann::ordered_json out;
  out["launched"] = kKernels;
  out["recorded"] = kernels;
  out["events_ms"] = elapsed_ms;
  out["kernels_ms"] = static_cast<double>(sum) / 1e6;
  out["first_to_last_ms"] = static_cast<double>(last - first) / 1e6;
  out["diagnostics"] = nlohmann::ordered_json::array();
  for (const trace::Diagnostic& each : run.traces.front().diagnostics) {
    out["diagnostics"].push_back(each.message);
  }
  const bool good = kernels == kKernels && out["diagnostics"].empty() &&
                    is_near(out["kernels_ms"], elapsed_ms) &&
                    is_near(out["first_to_last_ms"], elapsed_ms);
  fmt::print("{}\n", out.dump());
  return good ? 0 : 1;
}

}  // namespace
}  // namespace shardlens

int main() {
  try {
    return shardlens::main();
  } catch (const std::exception& error) {
    fmt::print(stderr, "kernel_times: {}\n", error.what());
    return 1;
  }
}
