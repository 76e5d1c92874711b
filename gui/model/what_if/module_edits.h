#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <QString>

#include "core/plan/resolved_plan.h"
#include "core/tree/module_tree.h"
#include "gui/model/what_if/edit_history.h"

namespace shardlens::gui {

// The choices for single modules: whether each is a unit, and that unit's resharding, prefetching,
// dtypes and API. `modules` are FQNs; several if a folded row is edited. If some of the modules is
// not a unit, plan::PlanEdit::apply() of the choices that need units leaves the plan unchanged.
[[nodiscard]] std::vector<PlanKnob> module_knobs(const plan::ModuleTree& tree,
                                                 int64_t world_size,
                                                 const std::vector<std::string>& modules);

// How the plan treats the module, in a few words: "unit, kept, bf16, →2" (2 units prefetched); ""
// if the module is not a unit.
[[nodiscard]] QString module_plan_text(const plan::ResolvedPlan& plan, uint32_t module);

// Whether a plan fits the model (`resolves`), and why it cannot be run: resolve()'s error, else the
// engine's; "" if the engine can run it.
struct PlanStanding {
  bool resolves = true;
  QString why;
};
[[nodiscard]] PlanStanding standing_of(const plan::Plan& plan,
                                       const plan::ModuleTree& tree,
                                       int64_t world_size);

// Why a state cannot be simulated, or the engine cannot run its plan; "" if both are possible. The
// plan is checked first, then whether it can be simulated, then the engine.
struct StateStanding {
  QString why;
  QString suffix;        // a short form, for an entry of a list: "   (refused)"
  bool possible = true;  // the plan fits the model, and can be simulated
};
[[nodiscard]] StateStanding standing_of(const PlanSession& session, const PlanState& state);

}  // namespace shardlens::gui
