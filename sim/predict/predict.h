#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/workload.h"
#include "core/schedule/planned.h"
#include "profiler/trace/run.h"
#include "sim/cost/cost_model.h"
#include "sim/engine/simulated_run.h"
#include "sim/engine/simulator.h"
#include "sim/hardware/hardware_spec.h"
#include "sim/memory/step_memory.h"

namespace shardlens::sim {

// The simulator's front door: what a step of a workload costs under a plan on a node of GPUs.
//
//   const plan::ModelConfig config = plan::load_model_config(path);
//   const plan::ResolvedPlan plan = plan::resolve(edited, plan::module_tree(config), 8);
//   const plan::Workload workload = plan::step_workload(config, plan, batch, seq);
//   const sim::HardwareSpec hardware = sim::load_hardware("8xH100");
//   const sim::Prediction now = sim::predict(workload, plan, hardware);
//   now.step.duration, now.busy, now.memory …
//   const trace::Run run = sim::predicted_run(workload, plan, now, hardware);  // as of a capture
//
// After an edit of the plan: resolve, step_workload and predict again; nothing is kept between
// calls. All of it is a few milliseconds for 80 layers; predicted_run writes every event of every
// rank and takes longer, so ask for it only when a timeline is shown.
//
// Threads  every function may be called from any thread at the same time.

// The step that is predicted: from it on nothing changes.
inline constexpr int kSteadyStep = 3;

// What a step is, beside its workload.
struct RunSettings {
  int64_t accumulate = 1;             // microbatches of a step; the workload is one of them
  bool sync_every_microbatch = true;  // false: only the last one reduces
  int64_t optimizer_states = 2;       // numbers per parameter: AdamW 2, SGD with momentum 1
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

struct Figures {
  SimulatedStep step;
  Busy busy;  // of the rank that computes longest; its parts sum to step.duration
  StepMemory memory;
  double tokens_per_s = 0;  // of all ranks
  // false: settings.simulation.more_microbatches must be planned one by one; nothing else counts.
  bool alike = true;
};

struct Prediction : Figures {
  schedule::PlannedStep planned;  // the kSteadyStep-th
};

// What the simulator has no model of yet is refused rather than left out of the figures.
// Errors  InputError naming the plan's key, or that it has more ranks than the hardware.
void require_simulator_support(const plan::ResolvedPlan& plan, const Target& target);
void require_simulator_support(const plan::ResolvedPlan& plan, const HardwareSpec& hardware);

// Errors  as require_simulator_support().
[[nodiscard]] Prediction predict(const plan::Workload& workload,
                                 const plan::ResolvedPlan& plan,
                                 const HardwareSpec& hardware,
                                 const RunSettings& settings = {});
[[nodiscard]] Prediction predict(const plan::Workload& workload,
                                 const plan::ResolvedPlan& plan,
                                 const Target& target,
                                 const RunSettings& settings = {});

// A node of GPUs, which `costs` is the model of.
[[nodiscard]] Target target_of(const HardwareSpec& hardware, const CostModel& costs);

// The parts of predict(), for who predicts many plans that have much in common: what memory is to
// be replayed with, and figures of a step that was simulated and replayed.
[[nodiscard]] MemoryOptions memory_options(const Target& target, const RunSettings& settings);
[[nodiscard]] Figures figures_of(SimulatedStep step,
                                 StepMemory memory,
                                 const plan::Workload& workload,
                                 const plan::ResolvedPlan& plan,
                                 const Target& target,
                                 const RunSettings& settings);

// The traces that a capture of the predicted step would leave, with plan and workload beside them.
// Errors  RuntimeFault if the prediction was made without times.
[[nodiscard]] trace::Run predicted_run(const plan::Workload& workload,
                                       const plan::ResolvedPlan& plan,
                                       const Prediction& prediction,
                                       const HardwareSpec& hardware,
                                       const RunSettings& settings = {});

// Share of the GPUs' matrix peak that a model's products need, attention counted whole:
// (6 · parameters + 12 · layers · hidden · seq) · tokens_per_s / (ranks · peak).
[[nodiscard]] double model_flops_utilization(const plan::ModelConfig& config,
                                             const plan::ResolvedPlan& plan,
                                             const HardwareSpec& hardware,
                                             int64_t seq,
                                             double tokens_per_s);

}  // namespace shardlens::sim
