#pragma once

#include <vector>

#include "core/edits/module_scope.h"
#include "core/edits/plan_edit.h"

namespace shardlens::plan {

// The edits of single modules (module_values.h) that a plan has as lists or maps of names.

// How many units the modules' units prefetch: the next ones in forward, those before in backward.
// The plan then has a list for each unit whose value is not the default.
[[nodiscard]] std::vector<PlanEdit> forward_prefetch_values(const ModuleScope& scope);
[[nodiscard]] std::vector<PlanEdit> backward_prefetch_values(const ModuleScope& scope);
// How the axis `tensor` divides the modules. The plan then has the styles of all modules.
[[nodiscard]] std::vector<PlanEdit> tensor_style_values(const ModuleScope& scope);
// Whether the modules are in no unit, and whole on every rank.
[[nodiscard]] std::vector<PlanEdit> ignored_values(const ModuleScope& scope);

}  // namespace shardlens::plan
