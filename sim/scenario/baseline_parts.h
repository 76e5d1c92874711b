#pragma once

#include <array>
#include <memory>
#include <optional>

#include "core/base/step_figures.h"
#include "profiler/analysis/analysis.h"
#include "sim/scenario/recorded_run.h"

namespace shardlens::sim {

// The parts of a Baseline's steps. Errors of parts that cancel are not in the error of the step.
struct BaselineParts {
  StepFigures measured;   // of the median step; of an even number, the mean of the two middle ones
  StepFigures simulated;  // of the run's own plan

  // Simulated minus measured compute, exposed communication, and idle time with exposed copies, as
  // shares of the measured step. They sum to Baseline::error().
  [[nodiscard]] std::array<double, 3> errors() const;
};

// `analysis` is that of the run.
//
// nullopt: the observed steps are not steps of the analysis, as where a single pass was measured.
[[nodiscard]] std::optional<BaselineParts> baseline_parts(
    const std::shared_ptr<const RecordedRun>& run, const analysis::Analysis& analysis);

}  // namespace shardlens::sim
