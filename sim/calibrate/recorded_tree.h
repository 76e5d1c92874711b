#pragma once

#include "core/plan/module_tree.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/workload.h"
#include "profiler/analysis/recover/recovered_plan.h"

namespace shardlens::sim {

// The module tree that a trace shows: a module for each unit and those around it, each unit with
// one parameter of all its elements, "<fqn>.parameters". Of DDP: a module for each gradient or
// bucket, "gradients.3" by the order in which they are ready, under one root.
// Errors  InputError where the trace has no sizes of collectives.
[[nodiscard]] plan::ModuleTree recorded_tree(const analysis::RecoveredPlan& recovered);

// A recorded workload under another plan of the same modules: each operator in the unit that its
// module is in now, with the hooks of the plan's units around them. A unit's forward begins with
// the first of its recorded units and ends with the last.
[[nodiscard]] plan::Workload rewrapped(const plan::Workload& recorded,
                                       const plan::ResolvedPlan& recorded_plan,
                                       const plan::ResolvedPlan& plan);

}  // namespace shardlens::sim
