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

#include "bench/empty_observer.h"
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
// What observes an operator.
enum class Observer : uint8_t { kNone, kEmpty, kClock, kRecorder };

template <typename Operator>
void small_operator(benchmark::State& state, Observer which, const Operator& run) {
  const at::NoGradGuard no_grad;
  Bench bench;
  std::optional<OperatorObserver> observer;
  std::optional<EmptyObserver> empty;
  if (which == Observer::kRecorder) {
    observer.emplace(bench.recorder());
  } else if (which != Observer::kNone) {
    empty.emplace(which == Observer::kClock);
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(run());
  }
  bench.report(state);
}

// An operator on eight numbers; an observer's cost is the difference between the variants.
void small_add(benchmark::State& state, Observer observer) {
  const at::Tensor a = at::ones({8});
  small_operator(state, observer, [&a] { return at::add(a, a); });
}
BENCHMARK_CAPTURE(small_add, plain, Observer::kNone)->Iterations(kIterations / 2);
BENCHMARK_CAPTURE(small_add, empty, Observer::kEmpty)->Iterations(kIterations / 2);
BENCHMARK_CAPTURE(small_add, clock, Observer::kClock)->Iterations(kIterations / 2);
BENCHMARK_CAPTURE(small_add, observed, Observer::kRecorder)->Iterations(kIterations / 2);

void small_mm(benchmark::State& state, Observer observer) {
  const at::Tensor a = at::ones({4, 4});
  small_operator(state, observer, [&a] { return at::mm(a, a); });
}
BENCHMARK_CAPTURE(small_mm, plain, Observer::kNone)->Iterations(kIterations / 2);
BENCHMARK_CAPTURE(small_mm, empty, Observer::kEmpty)->Iterations(kIterations / 2);
BENCHMARK_CAPTURE(small_mm, clock, Observer::kClock)->Iterations(kIterations / 2);
BENCHMARK_CAPTURE(small_mm, observed, Observer::kRecorder)->Iterations(kIterations / 2);
#endif

}  // namespace
}  // namespace shardlens::record

BENCHMARK_MAIN();
