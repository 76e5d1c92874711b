#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/model/decoder.h"
#include "core/plan/resolved_plan.h"
#include "core/tree/module_tree.h"
#include "core/workload/step_settings.h"
#include "core/workload/workload.h"
#include "profiler/analysis/figures/communication_figures.h"
#include "profiler/trace/run.h"
#include "sim/engine/simulator.h"
#include "sim/scenario/extrapolation.h"
#include "sim/scenario/predict.h"
#include "sim/scenario/recorded_run.h"
#include "sim/scenario/target_machine.h"

namespace shardlens::sim {

// The simulator's main interface. The commands, the search, the validation and the app describe the
// plan to predict as a Scenario and call evaluate():
//
//   Scenario scenario = own_scenario(RecordedRun::open(paths));   // as it ran, where it ran
//   scenario.plan.forward_prefetch = 1;
//   const Prediction now = evaluate(scenario);
//   now.figures, now.memory, now.baseline …
//   const trace::Run run = predicted_run(evaluate(scenario, {.timeline = true}));
//
// An evaluation takes a few milliseconds for 80 layers. No state is kept between calls.
//
// Threads  every function may be called from any thread at the same time.

// The program that runs: a model, or the operators of a recorded run.
class ScenarioModel {
 public:
  explicit ScenarioModel(plan::ModelConfig config);
  explicit ScenarioModel(const plan::DecoderShape& shape);
  explicit ScenarioModel(std::shared_ptr<const RecordedRun> run);
  // The model of a recorded run, for meshes that its operators do not tell: see model_of_run.h.
  // `pytorch`: as Observation::pytorch.
  ScenarioModel(plan::ModelConfig config, bool pytorch, std::optional<Baseline> baseline = {});

  [[nodiscard]] const plan::ModuleTree& tree() const { return tree_; }
  [[nodiscard]] const plan::ModelConfig* config() const;  // nullptr: unknown
  [[nodiscard]] const std::shared_ptr<const RecordedRun>& run() const { return run_; }
  // Of a recorded run, or of the run whose model it is; nullptr: there is none.
  [[nodiscard]] const Baseline* baseline() const;
  // The plan of tree()'s modules, under the library that the run was recorded with: see
  // plan::ResolvedPlan::copies_in_group_of_one. Errors: those of plan::resolve().
  [[nodiscard]] plan::ResolvedPlan resolve(const plan::Plan& plan, int64_t world_size) const;
  // Adds to a plan of its modules the groups of communication that a recorded run has. resolve()
  // does it too. Errors: as plan::add_group().
  void add_groups(plan::ResolvedPlan& plan) const;
  // One microbatch. Errors: InputError as step_workload() and RecordedRun::workload().
  [[nodiscard]] plan::Workload workload(const plan::ResolvedPlan& plan,
                                        const plan::StepSettings& settings) const;
  // As RecordedRun::workloads_of_ranks(); empty for a model.
  [[nodiscard]] std::vector<RankWorkload> workloads_of_ranks(
      const plan::ResolvedPlan& plan, const plan::StepSettings& settings) const;

 private:
  std::optional<plan::ModelConfig> config_;
  std::optional<plan::DecoderShape> shape_;
  std::shared_ptr<const RecordedRun> run_;
  plan::ModuleTree tree_;
  bool pytorch_ = false;
  std::optional<Baseline> baseline_;  // only without run_
};

struct Scenario {  // a model, a plan and a machine: what is predicted
  std::shared_ptr<const ScenarioModel> model;
  plan::Plan plan;
  int64_t world_size = 1;
  plan::StepSettings step;
  std::shared_ptr<const TargetMachine> machine;
  std::optional<HostMode> host;       // nullopt: the machine's
  bool waits_for_loss = false;        // the training loop reads the loss before backward
  std::vector<double> rank_slowdown;  // factor on each rank's compute; empty: identical ranks
};

// The value of --stack with which a model is predicted on a spec: `given`, or what is taken without
// one. For a config.json's on a GPU to which no stack with this engine's operators was fitted, that
// is torchtitan, or transformers where torchtitan does not have the model; otherwise it is "".
[[nodiscard]] std::string stack_or_default(const std::string& given,
                                           const std::string& hardware,
                                           const plan::ModelConfig& config);

// A recorded run as it ran, on the machine that it ran on.
[[nodiscard]] Scenario own_scenario(std::shared_ptr<const RecordedRun> run);

// A 90 % interval.
struct PredictedInterval {
  Nanoseconds low = 0, high = 0;
};

struct Prediction : StepPrediction {  // of a scenario, with what it was made from
  PricedStep priced;
  plan::StepSettings settings;
  HostMode host = HostMode::kAhead;
  std::string machine;               // the machine's name
  std::string device;                // a GPU's name in traces
  Bytes capacity = 0;                // memory of a GPU; 0: unknown
  Bytes available = 0;               // of it, what PyTorch's allocator can reserve; 0: unknown
  OutsideMemory outside_memory;      // the rest
  std::optional<double> mfu;         // only for a model on a spec
  std::optional<Baseline> baseline;  // only for a recorded run
  // Intervals of the step's duration, and of its difference from the run's own plan; nullopt: not
  // estimated.
  std::optional<PredictedInterval> interval, change_interval;
  std::vector<Extrapolation> extrapolated;  // work of sizes that were not measured
  // The communication in `figures`; only with Detail::communication. The groups are those of the
  // plan; what a measured machine communicates outside of the plan has no group and no count.
  std::vector<analysis::CommunicationFigures> communication;
  std::vector<std::string> unknown;  // sentences on what was not measured on the machine
};

// Optional parts of a prediction.
struct Detail {
  bool timeline = false;       // Prediction::step with the times of every item
  bool communication = false;  // Prediction::communication
  bool alive = false;          // StepMemory::alive: the live allocations at the peak
  bool history = false;        // StepMemory::history: memory through the step
};

// Errors  InputError of resolve(), for features that the simulator does not model, for work that
//         was not measured on the machine, and for settings that the run cannot be simulated with
//         (RecordedRun::workload()).
[[nodiscard]] Prediction evaluate(const Scenario& scenario, const Detail& detail = {});

// The error that evaluate() would throw for the scenario, found without a simulation; "": none.
[[nodiscard]] std::string refusal_of(const Scenario& scenario);

// The traces that a capture of the predicted step would have, together with plan and workload.
// Errors  RuntimeFault if the prediction was made without its timeline.
[[nodiscard]] trace::Run predicted_run(const Prediction& prediction);
// The same of one rank, and its trace.
[[nodiscard]] trace::Run predicted_run(const Prediction& prediction, int64_t rank);
[[nodiscard]] trace::Trace predicted_trace(const Prediction& prediction, int64_t rank);

// Share of the GPUs' peak matrix rate that a model's products need; attention is counted without
// the causal mask:
// (6 · active parameters + 12 · layers · hidden · seq) · tokens_per_s / (ranks · peak).
[[nodiscard]] double model_flops_utilization(const plan::ModelConfig& config,
                                             const plan::ResolvedPlan& plan,
                                             const HardwareSpec& hardware,
                                             int64_t seq,
                                             double tokens_per_s);

}  // namespace shardlens::sim
