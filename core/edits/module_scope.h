#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/edits/plan_edit.h"
#include "core/plan/plan.h"
#include "core/plan/resolved_plan.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {

// The modules that edits of single modules (module_values.h) read and change.
struct ModuleScope {
  using Modules = std::vector<std::string>;
  std::shared_ptr<const ModuleTree> tree;
  int64_t world_size = 1;
  Modules modules;  // FQNs

  // nullopt: the plan is invalid.
  [[nodiscard]] std::optional<ResolvedPlan> resolved(const Plan& plan) const;
  [[nodiscard]] std::set<std::string> names() const { return {modules.begin(), modules.end()}; }
};

// The value of a unit without one of its own.
inline constexpr const char* kPlansOwn = "the plan's default";

[[nodiscard]] std::string fqn_of(const ResolvedPlan& plan, uint32_t module);
// Whether any module of the unit is among `names`.
[[nodiscard]] bool has_any(const ResolvedPlan& plan,
                           const Unit& unit,
                           const std::set<std::string>& names);
// Whether each of the modules belongs to a unit's modules: it is a unit of its own, or is sharded
// together with other modules.
[[nodiscard]] bool all_are_units(const ResolvedPlan& plan, const ModuleScope::Modules& modules);
// An edit with the key's title and the label as its title.
[[nodiscard]] PlanEdit module_edit(PlanKey key,
                                   std::string label,
                                   std::function<void(Plan&)> apply,
                                   std::function<bool(const Plan&)> holds);

}  // namespace shardlens::plan
