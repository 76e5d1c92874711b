#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/plan/decoder.h"
#include "core/plan/module_tree.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/step_settings.h"
#include "core/plan/workload.h"
#include "profiler/trace/run.h"
#include "sim/engine/simulator.h"
#include "sim/scenario/predict.h"
#include "sim/scenario/recorded_run.h"
#include "sim/scenario/target_machine.h"

namespace shardlens::sim {

// The simulator's front door. Whatever asks "what would this plan do" describes it as a Scenario
// and calls evaluate(): the commands, the search, the validation, the app.
//
//   Scenario scenario = own_scenario(RecordedRun::open(paths));   // as it ran, where it ran
//   scenario.plan.forward_prefetch = 1;
//   const Prediction now = evaluate(scenario);
//   now.figures, now.memory, now.baseline …
//   const trace::Run run = predicted_run(evaluate(scenario, {.timeline = true}));
//
// An evaluation is a few milliseconds for 80 layers; nothing is kept between calls.
//
// Threads  every function may be called from any thread at the same time.

// What runs: a model, or the operators of a recorded run.
class ScenarioModel {
 public:
  explicit ScenarioModel(plan::ModelConfig config);
  explicit ScenarioModel(const plan::DecoderShape& shape);
  explicit ScenarioModel(std::shared_ptr<const RecordedRun> run);

  [[nodiscard]] const plan::ModuleTree& tree() const { return tree_; }
  [[nodiscard]] const plan::ModelConfig* config() const;  // nullptr: not known
  [[nodiscard]] const std::shared_ptr<const RecordedRun>& run() const { return run_; }
  // One microbatch. Errors: InputError as step_workload() and RecordedRun::workload().
  [[nodiscard]] plan::Workload workload(const plan::ResolvedPlan& plan,
                                        const plan::StepSettings& settings) const;

 private:
  std::optional<plan::ModelConfig> config_;
  std::optional<plan::DecoderShape> shape_;
  std::shared_ptr<const RecordedRun> run_;
  plan::ModuleTree tree_;
};

struct Scenario {
  std::shared_ptr<const ScenarioModel> model;
  plan::Plan plan;
  int64_t world_size = 1;
  plan::StepSettings step;
  std::shared_ptr<const TargetMachine> machine;
  std::optional<HostMode> host;       // nullopt: the machine's
  bool waits_for_loss = false;        // the training loop reads it before backward
  std::vector<double> rank_slowdown;  // how much longer each rank computes; empty: all are alike
};

// A recorded run as it ran, on the machine that it ran on.
[[nodiscard]] Scenario own_scenario(std::shared_ptr<const RecordedRun> run);

// A 90 % interval.
struct PredictedInterval {
  Nanoseconds low = 0, high = 0;
};

struct Prediction : StepPrediction {
  plan::ResolvedPlan plan;
  plan::Workload workload;  // of a microbatch
  plan::StepSettings settings;
  HostMode host = HostMode::kAhead;
  std::string machine;               // its name
  std::string device;                // what traces call a GPU
  Bytes capacity = 0;                // of a GPU's memory; 0: not known
  std::optional<double> mfu;         // of a model on a spec
  std::optional<Baseline> baseline;  // of a recorded run
  // Of the step, and of its change against the run's own plan; nullopt: not estimated.
  std::optional<PredictedInterval> interval, change_interval;
  std::vector<std::string> unknown;  // what the machine does not know, in sentences
};

// What is asked for beside the figures.
struct Detail {
  bool timeline = false;  // Prediction::step with the times of every item
  bool alive = false;     // StepMemory::alive: what is there at the peak
};

// Errors  InputError of resolve(), for what the simulator has no model of, for what the machine was
//         never seen to do, and for what the run does not tell (RecordedRun::workload()).
[[nodiscard]] Prediction evaluate(const Scenario& scenario, const Detail& detail = {});

// Why evaluate() would refuse the scenario, without the simulation; "": it would not.
[[nodiscard]] std::string refusal_of(const Scenario& scenario);

// The traces that a capture of the predicted step would leave, with plan and workload beside them.
// Errors  RuntimeFault if the prediction was made without its timeline.
[[nodiscard]] trace::Run predicted_run(const Prediction& prediction);
// One rank of it.
[[nodiscard]] trace::Trace predicted_trace(const Prediction& prediction, int64_t rank);

// Share of the GPUs' matrix peak that a model's products need, attention counted whole:
// (6 · parameters + 12 · layers · hidden · seq) · tokens_per_s / (ranks · peak).
[[nodiscard]] double model_flops_utilization(const plan::ModelConfig& config,
                                             const plan::ResolvedPlan& plan,
                                             const HardwareSpec& hardware,
                                             int64_t seq,
                                             double tokens_per_s);

}  // namespace shardlens::sim
