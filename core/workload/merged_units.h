#pragma once

#include <optional>

#include "core/plan/resolved_plan.h"
#include "core/workload/workload.h"

namespace shardlens::plan {

// Makes step_workload() of `coarse` out of that of `fine`, a plan with the same operators, for a
// caller that needs many workloads. Each unit of `coarse` must have all parameters of some units of
// `fine` and no others: a hook before such a unit is that of the first of them, one after it that
// of the last.
//
// Complexity  proportional to the operators, but only their units are written.
// nullopt     `coarse` is not of this form, hooks run again in a checkpoint, units have several
//             groups, or gradients are summed over `tensor` before their unit is reduced.
[[nodiscard]] std::optional<Workload> merge_units(Workload workload,
                                                  const ResolvedPlan& fine,
                                                  const ResolvedPlan& coarse);

}  // namespace shardlens::plan
