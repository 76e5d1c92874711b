#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/step_figures.h"
#include "core/plan/resolved_plan.h"
#include "core/workload/step_settings.h"
#include "core/workload/workload.h"
#include "sim/cost/cost_model.h"
#include "sim/engine/priced_step.h"
#include "sim/engine/simulator.h"
#include "sim/hardware/hardware_spec.h"
#include "sim/memory/peak_memory.h"

namespace shardlens::sim {

// Predicts a step of a workload under a plan on a target: schedule, simulation, then memory.
// evaluate() (scenario.h) and the search are built on it; all other code calls evaluate().
//
// Threads  every function may be called from any thread at the same time.

// Number of the predicted step: from this step on, all steps are the same.
inline constexpr int kSteadyStep = 3;

struct PredictOptions {               // which figures are made
  bool memory_history = false;        // fill StepMemory::history
  bool list_alive = true;             // fill StepMemory::alive (costs a second replay)
  SimulationOptions simulation = {};  // keep_times: false if only figures are needed
};

// The machine that a step runs on.
struct Target {
  std::string name;
  const CostModel* costs = nullptr;
  int64_t ranks = 0;  // maximum number of ranks
  Bytes memory = 0;   // per rank; 0: unknown, everything fits
  OutsideMemory outside_memory = {};
  // Time of a step outside its plan: loading data, the gradient norm, metrics. The norm
  // communicates only if gradients are sharded.
  Nanoseconds outside = 0, norm_communication = 0, outside_communication = 0;

  // The bytes that PyTorch's allocator can reserve; 0: unknown.
  [[nodiscard]] Bytes available() const {
    return memory > 0 ? std::max<Bytes>(0, memory - outside_memory.total()) : 0;
  }
};

struct StepPrediction {  // a predicted step: its times and its memory
  SimulatedStep step;
  StepFigures figures;  // of the rank that computes longest; duration() is step.duration
  StepMemory memory;
  double tokens_per_s = 0;  // of all ranks
  // false: the prediction is not valid; all of simulation.more_microbatches must be planned.
  bool alike = true;
};

// Rejects plans with features that the simulator does not model, instead of ignoring the features.
// Errors  InputError naming the plan's key, or stating that it has more ranks than the target.
void require_simulator_support(const plan::ResolvedPlan& plan, const Target& target);

// Step kSteadyStep. `workload` is one microbatch of `settings`, `of_ranks` the same of each rank
// where they differ.
// Errors  as require_simulator_support(); InputError for work that was not measured on the target.
[[nodiscard]] PricedStep priced_step(plan::Workload workload,
                                     plan::ResolvedPlan plan,
                                     const Target& target,
                                     const plan::StepSettings& settings,
                                     std::vector<RankWorkload> of_ranks = {});

// `step` must be priced for the target and `settings`.
[[nodiscard]] StepPrediction predict(const PricedStep& step,
                                     const Target& target,
                                     const plan::StepSettings& settings,
                                     const PredictOptions& options = {});

// The rank whose figures are those of the step: the one that computes longest.
[[nodiscard]] const SimulatedRank& shown_rank(const SimulatedStep& step);
// The time of reducing the gradients' norm on the target; 0 if no gradients are sharded.
[[nodiscard]] Nanoseconds norm_communication(const plan::ResolvedPlan& plan, const Target& target);

// The target for a hardware spec; `costs` must be its cost model.
[[nodiscard]] Target target_of(const HardwareSpec& hardware, const CostModel& costs);

// The parts of predict(), for callers that predict many similar plans: the options of the memory
// replay, and the prediction for a simulated step and its memory.
[[nodiscard]] MemoryOptions memory_options(const Target& target,
                                           const plan::StepSettings& settings,
                                           const PredictOptions& options);
[[nodiscard]] StepPrediction figures_of(SimulatedStep simulated,
                                        StepMemory memory,
                                        const PricedStep& step,
                                        const Target& target,
                                        const plan::StepSettings& settings);

}  // namespace shardlens::sim
