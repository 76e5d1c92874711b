// Cost of recording: per record of each kind, including writing it, and per operator with the
// observer enabled. `kept`: records per iteration.

#include <filesystem>
#include <optional>
#include <string>

#include <benchmark/benchmark.h>
#include <unistd.h>

#include "profiler/record/host/clock.h"
#include "profiler/record/host/spool_recorder.h"
#ifdef SHARDLENS_BENCH_ENGINE
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "profiler/record/operators/operator_observer.h"
#endif

namespace shardlens::record {
namespace {

constexpr int64_t kIterations = 1'000'000;  // a spool of 64 MB

class Bench {
 public:
  Bench()
      : directory_(std::filesystem::temp_directory_path() /
                   ("shardlens_bench_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(directory_);
    SpoolOptions options;
    options.directory = directory_;
    options.budget = Bytes{4} << 30;
    recorder_.emplace(options);
    recorder_->step_begin(0);
  }
  ~Bench() {
    recorder_.reset();
    std::filesystem::remove_all(directory_);
  }
  SpoolRecorder& recorder() { return *recorder_; }
  void report(benchmark::State& state) {
    state.counters["kept"] =
        static_cast<double>(recorder_->kept()) / static_cast<double>(state.iterations());
  }

 private:
  std::filesystem::path directory_;
  std::optional<SpoolRecorder> recorder_;
};

void clock(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(now_ns());
  }
}
BENCHMARK(clock);

void action(benchmark::State& state) {
  Bench bench;
  schedule::Action action;
  action.op = schedule::Op::kAllGather;
  uint32_t seq = 0;
  for (auto _ : state) {
    bench.recorder().action(++seq, action);
  }
}
BENCHMARK(action)->Iterations(kIterations);

void hook(benchmark::State& state) {
  Bench bench;
  for (auto _ : state) {
    benchmark::DoNotOptimize(bench.recorder().hook({.hook = Hook::kPreForward, .unit = 1}));
  }
}
BENCHMARK(hook)->Iterations(kIterations);

void range(benchmark::State& state) {
  Bench bench;
  for (auto _ : state) {
    const RangeScope scope(&bench.recorder(), Range::kPreForward, 1);
  }
}
BENCHMARK(range)->Iterations(kIterations);

void operator_record(benchmark::State& state) {
  Bench bench;
  const uint32_t name = bench.recorder().text("aten::add");
  for (auto _ : state) {
    bench.recorder().op(name, 1000, 2000, nullptr);
  }
}
BENCHMARK(operator_record)->Iterations(kIterations);

#ifdef SHARDLENS_BENCH_ENGINE
// An operator on eight numbers; the observer's cost is the difference between the two variants.
void small_add(benchmark::State& state, bool observed) {
  const at::NoGradGuard no_grad;
  Bench bench;
  std::optional<OperatorObserver> observer;
  if (observed) {
    observer.emplace(bench.recorder());
  }
  const at::Tensor a = at::ones({8});
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::add(a, a));
  }
  bench.report(state);
}
BENCHMARK_CAPTURE(small_add, plain, false)->Iterations(kIterations / 2);
BENCHMARK_CAPTURE(small_add, observed, true)->Iterations(kIterations / 2);

void small_mm(benchmark::State& state, bool observed) {
  const at::NoGradGuard no_grad;
  Bench bench;
  std::optional<OperatorObserver> observer;
  if (observed) {
    observer.emplace(bench.recorder());
  }
  const at::Tensor a = at::ones({4, 4});
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::mm(a, a));
  }
  bench.report(state);
}
BENCHMARK_CAPTURE(small_mm, plain, false)->Iterations(kIterations / 2);
BENCHMARK_CAPTURE(small_mm, observed, true)->Iterations(kIterations / 2);
#endif

}  // namespace
}  // namespace shardlens::record

BENCHMARK_MAIN();
