#pragma once

#include <filesystem>
#include <optional>

#include "core/plan/module_tree.h"
#include "core/plan/plan.h"
#include "core/plan/workload.h"
#include "sim/calibrate/calibrated_target.h"
#include "sim/calibrate/calibration.h"
#include "sim/calibrate/observation.h"
#include "sim/predict/predict.h"

namespace shardlens::sim {

// The simulator's own error: the plan as it ran.
struct Baseline {
  Nanoseconds measured = 0, simulated = 0;  // of a step; measured: the median

  [[nodiscard]] double error() const {
    return static_cast<double>(simulated) / static_cast<double>(measured) - 1;
  }
};

// What a recorded run teaches: a capture of ours, or traces of PyTorch's FSDP with shapes.
// Errors: InputError as observe(), recover_plan() and Run::open().
[[nodiscard]] Observation open_observation(const std::filesystem::path& path);

// A recorded run whose compute can be simulated under other plans.
//
//   const Replay replay = Replay::open("out/run");
//   const CalibratedTarget machine(replay.calibration);
//   replay.baseline(machine).error();
//   predict(replay.workload(plan), plan, machine.target(), replay.settings(machine));
struct Replay {
  Observation observation;
  Calibration calibration;
  std::optional<plan::ModelConfig> config;  // where a capture left it

  // Errors: those of open_observation(); InputError for a run that teaches no compute.
  [[nodiscard]] static Replay open(const std::filesystem::path& path);
  [[nodiscard]] static Replay of(const trace::Run& run);

  [[nodiscard]] const plan::ModuleTree& tree() const { return observation.plan.tree; }
  // The recorded operators under a plan of tree()'s modules. A PyTorch trace tells which unit an
  // operator belongs to, not which module, so units can be merged but not divided.
  [[nodiscard]] plan::Workload workload(const plan::ResolvedPlan& plan) const;
  // As recorded.
  [[nodiscard]] RunSettings settings(const CalibratedTarget& machine) const;
  [[nodiscard]] Baseline baseline(const CalibratedTarget& machine) const;
};

}  // namespace shardlens::sim
