#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// What a change decides. Two changes with a subject in common exclude each other.
enum class ChangeSubject : uint8_t {
  kReshard,
  kForwardPrefetch,
  kBackwardPrefetch,
  kUnits,
  kMesh,
  kCommunicators,
  kCheckpoints,
  kMicrobatches,
  kGradientSync,
  kBuckets,
};

// One change of a scenario's plan or step. The numbers that training computes stay the same, up to
// rounding.
struct PlanChange {
  std::vector<ChangeSubject> subjects;
  std::string title;  // "keep parameters after forward"
  std::function<void(Scenario&)>
      apply;  // to the scenario, or to one with changes of other subjects
  // The lines of a PyTorch program that make it, where `model` is the model. A line that begins
  // with '#' says what to do where no call does it.
  std::vector<std::string> pytorch;
};

[[nodiscard]] bool exclude_each_other(const PlanChange& a, const PlanChange& b);

// The changes of a scenario that are worth predicting: each value of each subject that the plan
// does not have already and that its dialect has. `plan`: the scenario's resolved plan.
[[nodiscard]] std::vector<PlanChange> single_changes(const Scenario& scenario,
                                                     const plan::ResolvedPlan& plan);

}  // namespace shardlens::sim
