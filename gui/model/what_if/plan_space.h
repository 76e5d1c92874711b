#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include <QString>

#include "gui/model/what_if/plan_state.h"
#include "sim/search/search.h"

namespace shardlens::gui {

// A plan that a search predicted.
struct SpacePoint {
  sim::Candidate candidate;
  StepFigures figures;
  Bytes peak = 0, reserved = 0;  // of the rank that needs most
  bool fits = true;              // otherwise it has no step
  bool front = false;            // no other one beats or equals it in step and allocated memory
  std::optional<sim::PredictedInterval> interval;  // of the step, 90 %; only of the front

  [[nodiscard]] Nanoseconds step() const { return figures.duration(); }
};

// All plans that a search predicted, with what they were made from.
struct PlanSpace {
  PlanState base;       // the state that was searched from
  Bytes available = 0;  // memory that PyTorch's allocator can reserve; 0: unknown
  std::vector<SpacePoint> points;

  // The base state with the point's plan and microbatches, and its name as an edit.
  [[nodiscard]] PlanState state_of(size_t point, const plan::ModuleTree& tree) const;
  [[nodiscard]] QString title_of(size_t point) const;
};

// A setting in which the plans of a space differ.
struct SpaceKnob {
  QString title, help;
  std::function<QString(const sim::Candidate& candidate, int64_t ranks)> value;
  std::function<double(const sim::Candidate& candidate)> key;  // orders its values
};
[[nodiscard]] const std::vector<SpaceKnob>& space_knobs();
// The different values that the points have, in their order.
[[nodiscard]] std::vector<QString> values_of(const SpaceKnob& knob, const PlanSpace& space);
// The knobs, as indices into space_knobs(), in which these points differ. Empty `points`: all.
[[nodiscard]] std::vector<size_t> differing_knobs(const PlanSpace& space,
                                                  const std::vector<size_t>& points);

}  // namespace shardlens::gui
