#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/plan/parameter_groups.h"
#include "core/plan/resolved_plan.h"

namespace shardlens::sim {

// Unit of a module: the unit that names the module, or the unit of its nearest parent; the root for
// a module that no unit is around. For several names with ", " between them, of the first.
class UnitOfModule {
 public:
  explicit UnitOfModule(const plan::ResolvedPlan& plan) {
    for (UnitId unit = 0; unit < plan.units.size(); unit += plan.units[unit].groups) {
      for (const uint32_t module : plan.units[unit].modules) {
        units_[plan.tree.modules[module].fqn] = unit;
      }
    }
    for (const plan::Unit& unit : plan.units) {
      expert_.push_back(unit.groups > 1 && unit.expert);
      groups_.push_back(unit.groups);
    }
  }
  // `name`: of a module, a unit or a group of a unit's parameters. If the unit that it is in has
  // two groups: the one of the same kind.
  [[nodiscard]] UnitId of(const std::string& name) const {
    const UnitId first = with_module(std::string(plan::unit_of_group(name)));
    for (UnitId group = first; group < first + groups_[first]; ++group) {
      if (expert_[group] == plan::is_expert_group(name)) {
        return group;
      }
    }
    return first;
  }

 private:
  [[nodiscard]] UnitId with_module(std::string fqn) const {
    fqn.resize(std::min(fqn.find(", "), fqn.size()));
    while (true) {
      const auto found = units_.find(fqn);
      if (found != units_.end()) {
        return found->second;
      }
      if (fqn.empty()) {
        return 0;
      }
      const size_t dot = fqn.rfind('.');
      fqn.resize(dot == std::string::npos ? 0 : dot);
    }
  }

  std::map<std::string, UnitId> units_;  // the first group
  std::vector<bool> expert_;             // by unit
  std::vector<uint32_t> groups_;
};

}  // namespace shardlens::sim
