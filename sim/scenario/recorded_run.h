#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "core/plan/module_tree.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/step_settings.h"
#include "core/plan/workload.h"
#include "profiler/trace/bytes/progress.h"
#include "profiler/trace/run.h"
#include "sim/calibrate/observation.h"
#include "sim/scenario/target_machine.h"

namespace shardlens::sim {

// The simulator's own error: the plan as it ran.
struct Baseline {
  Nanoseconds measured = 0, simulated = 0;  // of a step; measured: the median

  [[nodiscard]] double error() const {
    return static_cast<double>(simulated) / static_cast<double>(measured) - 1;
  }
  friend bool operator==(const Baseline&, const Baseline&) = default;
};

// What a recorded run teaches: a capture of ours, or traces of PyTorch's FSDP with shapes.
// Errors: InputError as observe(), recover_plan() and Run::open().
[[nodiscard]] Observation open_observation(const std::filesystem::path& path);

// A recorded run that can be simulated under other plans: its operators, the machine that its
// times describe, and how well its own plan is simulated on that machine.
//
// Ownership  immutable and shared.
class RecordedRun {
 public:
  // Reads the traces with the arguments that this takes.
  // Errors: those of open_observation(); InputError for a run that teaches no compute; RuntimeFault
  // where `progress` was stopped.
  [[nodiscard]] static std::shared_ptr<const RecordedRun> open(
      std::span<const std::filesystem::path> paths, trace::Progress* progress = nullptr);
  // Of a run that is open already. needs_arguments() must be false for it.
  [[nodiscard]] static std::shared_ptr<const RecordedRun> of(const trace::Run& run);
  // Traces without a plan are recovered from arguments of their events, which Run::open() keeps on
  // demand alone.
  [[nodiscard]] static bool needs_arguments(const trace::Run& run);

  // What was recorded; the plan is the run's own, or the one recovered.
  [[nodiscard]] const Observation& observation() const { return observation_; }
  [[nodiscard]] const plan::ModuleTree& tree() const { return observation_.plan.tree; }
  // Of the model; nullptr: a PyTorch trace names modules only as far as units go.
  [[nodiscard]] const plan::ModelConfig* config() const {
    return observation_.config ? &*observation_.config : nullptr;
  }
  // The machine of the run.
  [[nodiscard]] const std::shared_ptr<const TargetMachine>& machine() const { return machine_; }
  [[nodiscard]] const Baseline& baseline() const { return baseline_; }

  // A microbatch under a plan of tree()'s modules: the model's, or the recorded operators in other
  // units. A PyTorch trace tells which unit an operator belongs to, not which module, so units can
  // be merged but not divided.
  // Errors: InputError for other batches, sequences or optimizers than recorded where the model is
  // not known.
  [[nodiscard]] plan::Workload workload(const plan::ResolvedPlan& plan,
                                        const plan::StepSettings& settings) const;

 private:
  explicit RecordedRun(Observation observation);

  Observation observation_;
  std::shared_ptr<const TargetMachine> machine_;
  Baseline baseline_;
};

}  // namespace shardlens::sim
