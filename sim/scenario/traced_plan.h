#pragma once

#include "core/plan/plan.h"
#include "core/workload/step_settings.h"

namespace shardlens::sim {

// The plan as the program runs it: one that traces its steps (plan::is_traced()) shards each
// parameter, and gathers a unit early unless the plan says how early.
[[nodiscard]] plan::Plan as_run_by(plan::Program program, plan::Plan plan);

}  // namespace shardlens::sim
