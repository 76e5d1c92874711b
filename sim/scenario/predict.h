#pragma once

#include <cstdint>
#include <string>

#include "core/base/step_figures.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/step_settings.h"
#include "core/plan/workload.h"
#include "core/schedule/planned.h"
#include "sim/cost/cost_model.h"
#include "sim/engine/simulator.h"
#include "sim/engine/step_costs.h"
#include "sim/hardware/hardware_spec.h"
#include "sim/memory/step_memory.h"

namespace shardlens::sim {

// What a step of a workload costs under a plan on a target: schedule, simulation and memory in a
// row. evaluate() (scenario.h) and the search are built on it; everything else asks evaluate().
//
// Threads  every function may be called from any thread at the same time.

// The step that is predicted: from it on nothing changes.
inline constexpr int kSteadyStep = 3;

struct PredictOptions {
  bool list_alive = true;             // fill StepMemory::alive (costs a second replay)
  SimulationOptions simulation = {};  // keep_times = false where only figures are asked for
};

// What a step runs on.
struct Target {
  std::string name;
  const CostModel* costs = nullptr;
  int64_t ranks = 0;  // at most
  Bytes memory = 0;   // of each; 0: not known, everything fits
  // What a step takes beside its plan: loading data, the norm of gradients, metrics.
  Nanoseconds outside = 0, outside_communication = 0;
};

struct StepPrediction {
  SimulatedStep step;
  StepFigures figures;  // of the rank that computes longest; duration() is step.duration
  StepMemory memory;
  double tokens_per_s = 0;  // of all ranks
  // false: simulation.more_microbatches must be planned one by one; nothing else counts.
  bool alike = true;
  schedule::PlannedStep planned;  // the kSteadyStep-th; predict() alone fills it
};

// What the simulator has no model of yet is refused rather than left out of the figures.
// Errors  InputError naming the plan's key, or that it has more ranks than the target.
void require_simulator_support(const plan::ResolvedPlan& plan, const Target& target);

// The steady step as it is planned, with the duration of everything in it.
struct PricedStep {
  schedule::PlannedStep planned;
  StepCosts costs;
};
// Errors  as require_simulator_support(); InputError for what the target was never seen to do.
[[nodiscard]] PricedStep priced_step(const plan::Workload& workload,
                                     const plan::ResolvedPlan& plan,
                                     const Target& target,
                                     const plan::StepSettings& settings);

// `workload` is one microbatch of `settings`.
// Errors  as priced_step().
[[nodiscard]] StepPrediction predict(const plan::Workload& workload,
                                     const plan::ResolvedPlan& plan,
                                     const Target& target,
                                     const plan::StepSettings& settings,
                                     const PredictOptions& options = {});

// A node of GPUs, which `costs` is the model of.
[[nodiscard]] Target target_of(const HardwareSpec& hardware, const CostModel& costs);

// The parts of predict(), for who predicts many plans that have much in common: what memory is to
// be replayed with, and figures of a step that was simulated and replayed.
[[nodiscard]] MemoryOptions memory_options(const Target& target,
                                           const plan::StepSettings& settings,
                                           const PredictOptions& options);
[[nodiscard]] StepPrediction figures_of(SimulatedStep step,
                                        StepMemory memory,
                                        const plan::Workload& workload,
                                        const plan::ResolvedPlan& plan,
                                        const Target& target,
                                        const plan::StepSettings& settings);

}  // namespace shardlens::sim
