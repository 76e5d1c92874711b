#include "core/edits/module_scope.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {

std::optional<ResolvedPlan> ModuleScope::resolved(const Plan& plan) const {
  try {
    return plan::resolve(plan, *tree, world_size);
  } catch (const Error&) {
    return std::nullopt;  // the panel shows why
  }
}

std::string fqn_of(const ResolvedPlan& plan, uint32_t module) {
  return plan.tree.modules[module].fqn;
}

bool has_any(const ResolvedPlan& plan, const Unit& unit, const std::set<std::string>& names) {
  return std::any_of(unit.modules.begin(), unit.modules.end(),
                     [&](uint32_t m) { return names.contains(fqn_of(plan, m)); });
}

bool all_are_units(const ResolvedPlan& plan, const ModuleScope::Modules& modules) {
  return std::all_of(modules.begin(), modules.end(), [&](const std::string& name) {
    return std::any_of(plan.units.begin(), plan.units.end(),
                       [&](const Unit& unit) { return has_any(plan, unit, {name}); });
  });
}

PlanEdit module_edit(PlanKey key,
                     std::string label,
                     std::function<void(Plan&)> apply,
                     std::function<bool(const Plan&)> holds) {
  std::string title = fmt::format("{}: {}", plan_key(key).title, label);
  return {key, std::move(label), std::move(title), std::move(apply), std::move(holds), nullptr};
}

}  // namespace shardlens::plan
