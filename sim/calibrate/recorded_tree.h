#pragma once

#include "core/plan/resolved_plan.h"
#include "core/tree/module_tree.h"
#include "core/workload/workload.h"
#include "profiler/analysis/recover/recovered_plan.h"

namespace shardlens::sim {

// The module tree that can be read from a trace: a module for each unit and for its parents. Each
// unit has one parameter, "<fqn>.parameters", with all its elements. For DDP: a module for each
// gradient or bucket under one root, numbered in the order in which gradients become ready
// ("gradients.3").
// Errors  InputError if the trace has no sizes of collectives.
[[nodiscard]] plan::ModuleTree recorded_tree(const analysis::RecoveredPlan& recovered);

// A recorded workload under another plan of the same modules: each operator belongs to the unit
// that now contains its module, and the hooks are those of the new plan's units. A new unit's
// forward begins with the first of the recorded units that it contains and ends with the last.
[[nodiscard]] plan::Workload rewrapped(const plan::Workload& recorded,
                                       const plan::ResolvedPlan& recorded_plan,
                                       const plan::ResolvedPlan& plan);

}  // namespace shardlens::sim
