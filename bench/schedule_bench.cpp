// Cost of the schedule: time per action of a steady step, by dialect and layout. Goal: at most
// 50 ns.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "core/schedule/ledger.h"
#include "core/schedule/schedule.h"

namespace {

using shardlens::Hook;
using shardlens::HookEvent;
using shardlens::UnitId;
namespace plan = shardlens::plan;
namespace schedule = shardlens::schedule;

constexpr UnitId kBlocks = 32;

struct Setup {
  std::vector<schedule::UnitSpec> units;
  schedule::ScheduleOptions options;
};

Setup setup(plan::Dialect dialect, bool per_parameter) {
  Setup made;
  made.options.dialect = dialect;
  made.options.shard = 8;
  made.options.layout = per_parameter ? plan::Layout::kPerParameter : plan::Layout::kFlat;
  made.units.resize(kBlocks + 1);
  for (UnitId id = 0; id <= kBlocks; ++id) {
    schedule::UnitSpec& unit = made.units[id];
    unit.name = "layers." + std::to_string(id);
    unit.parent = id == 0 ? shardlens::kNoUnit : 0;
    unit.copy_in = unit.copy_out = unit.reduce_copy_in = per_parameter;
  }
  return made;
}

// Hooks of one training step of a model with kBlocks blocks.
std::vector<HookEvent> step_hooks() {
  std::vector<HookEvent> hooks;
  const auto add = [&hooks](Hook hook, UnitId unit) {
    hooks.push_back({.hook = hook, .unit = unit});
  };
  add(Hook::kRootPreForward, 0);
  add(Hook::kPreForward, 0);
  for (UnitId id = 1; id <= kBlocks; ++id) {
    add(Hook::kPreForward, id);
    add(Hook::kPostForward, id);
  }
  add(Hook::kPostForward, 0);
  add(Hook::kPreBackward, 0);
  for (UnitId id = kBlocks; id >= 1; --id) {
    add(Hook::kPreBackward, id);
    add(Hook::kGradsReady, id);
  }
  add(Hook::kGradsReady, 0);
  add(Hook::kBackwardEnd, 0);
  add(Hook::kOptimizerDone, 0);
  return hooks;
}

void run_steps(benchmark::State& state, plan::Dialect dialect, bool per_parameter) {
  const Setup made = setup(dialect, per_parameter);
  auto result = schedule::Schedule::make(made.units, made.options);
  schedule::Schedule machine = std::move(result.value());
  const std::vector<HookEvent> hooks = step_hooks();
  schedule::ActionList actions;
  int64_t issued = 0;
  for (auto _ : state) {
    actions.clear();
    for (const HookEvent& hook : hooks) {
      if (!machine.on(hook, actions).ok()) {
        state.SkipWithError("the schedule refused a hook");
        return;
      }
    }
    issued += static_cast<int64_t>(actions.size());
    benchmark::DoNotOptimize(actions.data());
  }
  state.counters["actions"] = static_cast<double>(actions.size());
  state.counters["per_action"] = benchmark::Counter(
      static_cast<double>(issued), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Fsdp2Flat(benchmark::State& state) {
  run_steps(state, plan::Dialect::kFsdp2, false);
}
void Fsdp2PerParameter(benchmark::State& state) {
  run_steps(state, plan::Dialect::kFsdp2, true);
}
void Fsdp1(benchmark::State& state) {
  run_steps(state, plan::Dialect::kFsdp1, false);
}

// Additional cost of debug mode.
void LedgerOfAStep(benchmark::State& state) {
  const Setup made = setup(plan::Dialect::kFsdp2, false);
  auto result = schedule::Schedule::make(made.units, made.options);
  schedule::ActionList actions;
  for (const HookEvent& hook : step_hooks()) {
    if (!result.value().on(hook, actions).ok()) {
      state.SkipWithError("the schedule refused a hook");
      return;
    }
  }
  for (auto _ : state) {
    schedule::Ledger ledger(made.units, made.options);
    for (const schedule::Action& action : actions) {
      benchmark::DoNotOptimize(ledger.consume(action).ok());
    }
  }
  state.counters["per_action"] = benchmark::Counter(
      static_cast<double>(actions.size()) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK(Fsdp2Flat);
BENCHMARK(Fsdp2PerParameter);
BENCHMARK(Fsdp1);
BENCHMARK(LedgerOfAStep);

}  // namespace

BENCHMARK_MAIN();
