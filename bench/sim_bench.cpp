// Cost of simulating a step: an 80-layer 70B model on 8 GPUs. Goals: at most 2 ms and 16 MiB with
// the timeline of every kernel, 10 ms if each rank is simulated, 0.5 ms for only figures. A plan
// that divides layers: at most 1.5 times a data-parallel plan of as many items.
#include <memory>

#include <benchmark/benchmark.h>

#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/schedule/planned/planned.h"
#include "core/tree/module_tree.h"
#include "sim/cost/gpu_cost_model.h"
#include "sim/engine/simulator.h"
#include "sim/memory/peak_memory.h"

namespace {

namespace plan = shardlens::plan;
namespace schedule = shardlens::schedule;
namespace sim = shardlens::sim;

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 8192,
  "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
  "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072})";

// Everything that does not depend on the plan's schedule, created once.
struct Setup {
  plan::ModelConfig config;
  plan::ResolvedPlan plan;
  plan::Workload workload;
  sim::StepCosts costs;

  static const Setup& get() {
    static const Setup setup = [] {
      const plan::ModelConfig config = plan::parse_model_config(kModel, "70b");
      const plan::ModuleTree tree = plan::module_tree(config);
      plan::Plan plan = plan::strategy_plan("full_shard", tree);
      plan.mixed_precision.param_dtype = shardlens::DType::kBF16;
      plan.mixed_precision.reduce_dtype = shardlens::DType::kF32;
      Setup made;
      made.config = config;
      made.plan = plan::resolve(plan, tree, 8);
      made.workload = plan::step_workload(config, made.plan, {.batch = 1, .seq = 4096});
      made.costs = sim::step_costs(made.workload, made.plan,
                                   sim::GpuCostModel(sim::load_hardware("8xH100")));
      return made;
    }();
    return setup;
  }
};

// A plan of 70B's layers on eight ranks, simulated with its memory.
void plan_of(benchmark::State& state, const plan::MeshSizes& mesh, int64_t layers) {
  plan::ModelConfig config = Setup::get().config;
  config.layers = layers;
  plan::Plan given = Setup::get().plan.plan;
  given.mesh = mesh;
  given.units.clear();
  const plan::ResolvedPlan plan = plan::resolve(given, plan::module_tree(config), 8);
  const plan::Workload workload = plan::step_workload(config, plan, {.batch = 1, .seq = 4096});
  const sim::StepCosts costs =
      sim::step_costs(workload, plan, sim::GpuCostModel(sim::load_hardware("8xH100")));
  sim::MemoryOptions memory;
  memory.capacity = int64_t{1} << 50;
  memory.list_alive = false;
  size_t items = 0;
  for (auto _ : state) {
    const schedule::PlannedStep step = schedule::planned_step(workload, plan);
    const auto priced = sim::PricedStep::borrowed(workload, plan, step, costs);
    benchmark::DoNotOptimize(sim::simulate(priced, {.keep_times = false}).duration);
    benchmark::DoNotOptimize(sim::step_memory(priced, memory).peak_allocated);
    items = step.order.size();
  }
  state.counters["items"] = static_cast<double>(items);
}
void DataParallelPlan(benchmark::State& state) {  // with as many items as the next one
  plan_of(state, {}, 104);
}
void TensorParallelPlan(benchmark::State& state) {
  plan_of(state, {.shard = 2, .tensor = 4}, 80);
}
void ContextParallelPlan(benchmark::State& state) {
  plan_of(state, {.shard = 2, .context = 4}, 80);
}

void run_step(benchmark::State& state, const sim::SimulationOptions& options) {
  const Setup& setup = Setup::get();
  size_t items = 0;
  for (auto _ : state) {
    const schedule::PlannedStep step = schedule::planned_step(setup.workload, setup.plan);
    const sim::SimulatedStep simulated = sim::simulate(
        sim::PricedStep::borrowed(setup.workload, setup.plan, step, setup.costs), options);
    items = step.order.size();
    benchmark::DoNotOptimize(simulated.duration);
  }
  state.counters["items"] = static_cast<double>(items);
}

void Timeline(benchmark::State& state) {
  run_step(state, {});
}
void FiguresAlone(benchmark::State& state) {
  run_step(state, {.keep_times = false});
}
void EachRank(benchmark::State& state) {
  run_step(state, {.rank_slowdown = std::vector<double>(8, 1.0)});
}

// The work before the simulation: resolving the plan's units, and their operators.
void Resolve(benchmark::State& state) {
  const Setup& setup = Setup::get();
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        plan::resolve(setup.plan.plan, setup.plan.tree, setup.plan.world_size).units.size());
  }
}
void Workload(benchmark::State& state) {
  const Setup& setup = Setup::get();
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        plan::step_workload(setup.config, setup.plan, {.batch = 1, .seq = 4096}).operators.size());
  }
}

// Planning, which is part of run_step(); and costs and memory, which are not.
void PlannedStep(benchmark::State& state) {
  const Setup& setup = Setup::get();
  for (auto _ : state) {
    benchmark::DoNotOptimize(schedule::planned_step(setup.workload, setup.plan).order.size());
  }
}
void StepCosts(benchmark::State& state) {
  const Setup& setup = Setup::get();
  const sim::GpuCostModel model(sim::load_hardware("8xH100"));
  for (auto _ : state) {
    benchmark::DoNotOptimize(sim::step_costs(setup.workload, setup.plan, model).units.size());
  }
}
void Memory(benchmark::State& state) {
  const Setup& setup = Setup::get();
  const schedule::PlannedStep step = schedule::planned_step(setup.workload, setup.plan);
  sim::MemoryOptions options;
  options.capacity = int64_t{1} << 50;
  options.list_alive = false;
  const auto priced = sim::PricedStep::borrowed(setup.workload, setup.plan, step, setup.costs);
  for (auto _ : state) {
    benchmark::DoNotOptimize(sim::step_memory(priced, options).peak_allocated);
  }
}

BENCHMARK(DataParallelPlan);
BENCHMARK(TensorParallelPlan);
BENCHMARK(ContextParallelPlan);
BENCHMARK(Timeline);
BENCHMARK(FiguresAlone);
BENCHMARK(EachRank);
BENCHMARK(Resolve);
BENCHMARK(Workload);
BENCHMARK(PlannedStep);
BENCHMARK(StepCosts);
BENCHMARK(Memory);

}  // namespace

BENCHMARK_MAIN();
