#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/edits/plan_edit.h"
#include "core/plan/plan.h"
#include "core/plan/resolved_plan.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {

// The edits of single modules in the catalogue (plan_edits.h), the most used keys first. Of kUnit,
// kCheckpoints and kFrozen: whether each module is a unit, runs again in backward, and is trained;
// of the other keys: the values of its unit. `modules`: FQNs, several if they are edited together.
// If some of the modules is not a unit, edits of the latter leave the plan unchanged.
[[nodiscard]] std::vector<PlanKey> module_keys();
[[nodiscard]] std::vector<PlanEdit> module_values(PlanKey key,
                                                  const ModuleTree& tree,
                                                  int64_t world_size,
                                                  const std::vector<std::string>& modules);

// An entry for the unit: the one that it has in the plan, of its modules only.
[[nodiscard]] UnitEntry own_entry(const ResolvedPlan& plan, const Unit& unit);

// `plan` with a separate entry for each unit that contains one of `modules`, so that these units
// can be changed without changing others. The units themselves stay the same. Errors: InputError of
// resolve().
[[nodiscard]] Plan with_own_entries(const Plan& plan,
                                    const ModuleTree& tree,
                                    int64_t world_size,
                                    const std::vector<std::string>& modules);

}  // namespace shardlens::plan
