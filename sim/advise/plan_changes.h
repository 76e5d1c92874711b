#pragma once

#include <vector>

#include "core/edits/plan_edit.h"
#include "core/plan/resolved_plan.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// The edits of a scenario's plan and step (core/edits/plan_edits.h) that are worth predicting: each
// value of each key that the plan does not have already and that its dialect has. The numbers that
// training computes stay the same, up to rounding. `plan`: the scenario's resolved plan.
[[nodiscard]] std::vector<plan::PlanEdit> single_changes(const Scenario& scenario,
                                                         const plan::ResolvedPlan& plan);

// Makes the edit.
void make(const plan::PlanEdit& change, Scenario& scenario);

}  // namespace shardlens::sim
