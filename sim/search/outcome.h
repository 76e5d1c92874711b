#pragma once

#include "core/base/step_figures.h"
#include "core/base/units.h"

namespace shardlens::sim {

// Predicted time and memory of a candidate.
struct Outcome {
  StepFigures figures = {};  // duration() is the step time
  Bytes peak_reserved = 0, peak_allocated = 0;
  bool fits = true;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

}  // namespace shardlens::sim
