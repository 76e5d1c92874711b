#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/step_figures.h"
#include "core/plan/resolved_plan.h"
#include "core/tree/module_tree.h"
#include "core/workload/step_settings.h"
#include "core/workload/workload.h"
#include "profiler/analysis/analyzed_run.h"
#include "profiler/trace/bytes/progress.h"
#include "profiler/trace/run.h"
#include "sim/calibrate/changes/recorded_sequence.h"
#include "sim/calibrate/observation.h"
#include "sim/scenario/target_machine.h"

namespace shardlens::sim {

// Measured and simulated step time of the run's own plan, and the simulator's error on it.
struct Baseline {
  Nanoseconds measured = 0, simulated = 0;  // per step; measured: the median
  // What was measured: Observation::steps, left_out and one_pass.
  int64_t steps = 0;
  std::vector<StepsLeftOut> left_out = {};
  bool one_pass = false;
  // By rank: how long its collectives waited for later ranks, in a mean step. Only of ranks with
  // unequal work, if their collectives were matched.
  std::vector<Nanoseconds> waits = {};

  [[nodiscard]] double error() const {
    return static_cast<double>(simulated) / static_cast<double>(measured) - 1;
  }
  // What was measured, in words: "10 steps of run"; "6 steps of run, 2 left out: an evaluation ran
  // in them"; "one pass of run, because no step is like the plan's, 8 left out: …"; "one pass of
  // run, which has no steps".
  [[nodiscard]] std::string measured_text(const std::string& run) const;
  // A sentence for people if the error is so large that changes of this run are not known: more
  // than 20 %. Otherwise "".
  [[nodiscard]] std::string doubt_text() const;
  friend bool operator==(const Baseline&, const Baseline&) = default;
};

// Measures a recorded run: a capture by Shardlens, or traces of PyTorch's FSDP or DDP with shapes.
// Errors: InputError as observe(), recover_plan() and Run::open().
[[nodiscard]] Observation open_observation(const std::filesystem::path& path);

// A recorded run that can be simulated under other plans: its operators, the machine calibrated
// from its times, and the simulator's error for its own plan on that machine.
//
// Ownership  immutable and shared.
class RecordedRun {
 public:
  // Reads the traces, with the events' arguments where they are needed.
  // Errors: those of open_observation(); InputError for a run without times of compute;
  // RuntimeFault if `progress` was stopped.
  [[nodiscard]] static std::shared_ptr<const RecordedRun> open(
      std::span<const std::filesystem::path> paths, trace::Progress* progress = nullptr);
  // Only reads the traces, for of() and other uses.
  [[nodiscard]] static analysis::AnalyzedRun read(std::span<const std::filesystem::path> paths,
                                                  trace::Progress* progress = nullptr);
  // A run and another one of the same program, which differs in the length of its sequences: the
  // first, which can then be simulated with any length. The machine is calibrated from both.
  // Errors: those of open(), and of other_sequence().
  [[nodiscard]] static std::shared_ptr<const RecordedRun> open_two(
      const std::filesystem::path& first, const std::filesystem::path& second);
  // For a run that is already open. needs_arguments() must be false for it, or the arguments kept.
  [[nodiscard]] static std::shared_ptr<const RecordedRun> of(const analysis::AnalyzedRun& run);
  [[nodiscard]] static std::shared_ptr<const RecordedRun> of(const trace::Run& run);
  // The plan of traces without one is recovered from their events' arguments, which Run::open()
  // keeps only on request.
  [[nodiscard]] static bool needs_arguments(const trace::Run& run);

  // The measured run; its plan is the run's own, or the recovered one.
  [[nodiscard]] const Observation& observation() const { return observation_; }
  [[nodiscard]] const plan::ModuleTree& tree() const { return observation_.plan.tree; }
  // The model's config; nullptr for a PyTorch trace, which only names the modules of units.
  [[nodiscard]] const plan::ModelConfig* config() const {
    return observation_.config ? &*observation_.config : nullptr;
  }
  // The machine of the run.
  [[nodiscard]] const std::shared_ptr<const TargetMachine>& machine() const { return machine_; }
  [[nodiscard]] const Baseline& baseline() const { return baseline_; }
  // The parts of the baseline's simulated step.
  [[nodiscard]] const StepFigures& own_figures() const { return own_figures_; }

  // A microbatch under a plan of tree()'s modules: that of the model, or the recorded operators in
  // other units. In a PyTorch trace the unit of an operator is known, but not its module, so units
  // can be merged but not divided. Other activation checkpoints and batches are those of
  // [Note: Checkpoints of a recorded pass] and [Note: Batch of a recorded pass].
  // Other sequences are those of [Note: Sequence of a recorded pass].
  // Errors: InputError for optimizers other than recorded, if the model is unknown, and for
  // sequences, checkpoints and batches that the run cannot tell.
  [[nodiscard]] plan::Workload workload(const plan::ResolvedPlan& plan,
                                        const plan::StepSettings& settings) const;
  // The same of each rank, where the ranks had unequal work; empty: they are alike.
  [[nodiscard]] std::vector<RankWorkload> workloads_of_ranks(
      const plan::ResolvedPlan& plan, const plan::StepSettings& settings) const;

 private:
  explicit RecordedRun(Observation observation,
                       const std::optional<Observation>& other = std::nullopt);
  [[nodiscard]] static std::shared_ptr<const RecordedRun> with_baseline(
      std::shared_ptr<RecordedRun> run);
  // A pass of the run under the plan.
  [[nodiscard]] plan::Workload adapted(const plan::Workload& pass,
                                       const plan::ResolvedPlan& plan,
                                       const plan::StepSettings& settings) const;

  Observation observation_;
  std::optional<OtherSequence> other_;
  std::shared_ptr<const TargetMachine> machine_;
  Baseline baseline_;
  StepFigures own_figures_;
};

}  // namespace shardlens::sim
