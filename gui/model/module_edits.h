#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <QString>

#include "core/plan/module_tree.h"
#include "core/plan/resolved_plan.h"
#include "gui/model/plan_session.h"

namespace shardlens::gui {

// What can be chosen for some modules alone: whether each is a unit, and how that unit is
// resharded, prefetched, cast and by which API. `modules` are FQNs, several where a folded row is
// edited. Choices that need units of their own say what to do first (PlanKnob::Choice::apply leaves
// a plan as it is where a module is no unit).
[[nodiscard]] std::vector<PlanKnob> module_knobs(const plan::ModuleTree& tree,
                                                 int64_t world_size,
                                                 const std::vector<std::string>& modules);

// `plan` with an entry of its own for each unit that holds one of `modules`, so that they can be
// changed without the others; the same units otherwise. Errors: InputError of resolve().
[[nodiscard]] plan::Plan with_own_entries(const plan::Plan& plan,
                                          const plan::ModuleTree& tree,
                                          int64_t world_size,
                                          const std::vector<std::string>& modules);

// In a few words, how the plan treats the module: "unit, kept, bf16, →2" (so many units
// prefetched);
// "" where it is no unit.
[[nodiscard]] QString module_plan_text(const plan::ResolvedPlan& plan, uint32_t module);

// Whether a plan fits the model, and what stands against it: resolve()'s reason, else the engine's;
// "" where the engine runs it.
struct PlanStanding {
  bool resolves = true;
  QString why;
};
[[nodiscard]] PlanStanding standing_of(const plan::Plan& plan,
                                       const plan::ModuleTree& tree,
                                       int64_t world_size);

}  // namespace shardlens::gui
