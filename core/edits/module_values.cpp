#include "core/edits/module_values.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/edits/module_lists.h"
#include "core/edits/module_scope.h"
#include "core/edits/plan_edits.h"
#include "core/edits/plan_values.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using Modules = ModuleScope::Modules;

bool is_entry_of(const UnitEntry& entry, const std::string& module) {
  return std::find(entry.globs.begin(), entry.globs.end(), module) != entry.globs.end();
}

// Removes the modules from all entries.
void unwrap(Plan& plan, const Modules& modules) {
  for (UnitEntry& entry : plan.units) {
    std::erase_if(entry.globs, [&](const std::string& glob) {
      return std::find(modules.begin(), modules.end(), glob) != modules.end();
    });
    entry.grouped = entry.globs.size() > 1;
  }
  std::erase_if(plan.units, [](const UnitEntry& entry) { return entry.globs.empty(); });
}

void wrap(Plan& plan, const Modules& modules, bool together) {
  unwrap(plan, modules);
  std::vector<UnitEntry> added;
  if (together) {
    added.emplace_back();
    added.back().globs = modules;
    added.back().grouped = modules.size() > 1;
  } else {
    for (const std::string& module : modules) {
      added.emplace_back().globs = {module};
    }
  }
  plan.units.insert(plan.units.begin(), added.begin(), added.end());
}

std::vector<PlanEdit> unit_values(const ModuleScope& scope) {
  std::vector<PlanEdit> out;
  const auto own = [scope](Plan& p) {
    p = with_own_entries(p, *scope.tree, scope.world_size, scope.modules);
  };
  const auto units_of = [scope](const Plan& p) {
    std::set<size_t> units;
    size_t found = 0;
    if (const auto resolved = scope.resolved(p)) {
      const std::set<std::string> names(scope.modules.begin(), scope.modules.end());
      for (size_t u = 0; u < resolved->units.size(); u += resolved->units[u].groups) {
        for (const uint32_t m : resolved->units[u].modules) {
          if (names.contains(fqn_of(*resolved, m))) {
            units.insert(u);
            ++found;
          }
        }
      }
    }
    return std::pair(found, units.size());
  };
  const bool several = scope.modules.size() > 1;
  out.push_back(module_edit(
      PlanKey::kUnit, several ? "each a unit of its own" : "a unit of its own",
      [own, scope](Plan& p) {
        own(p);
        wrap(p, scope.modules, false);
      },
      [units_of, scope](const Plan& p) {
        return units_of(p) == std::pair(scope.modules.size(), scope.modules.size());
      }));
  if (several) {
    out.push_back(module_edit(
        PlanKey::kUnit, "all together in one unit",
        [own, scope](Plan& p) {
          own(p);
          wrap(p, scope.modules, true);
        },
        [units_of, scope](const Plan& p) {
          return units_of(p) == std::pair(scope.modules.size(), size_t{1});
        }));
  }
  if (scope.modules != Modules{""}) {  // the root unit holds the remaining parameters
    out.push_back(module_edit(
        PlanKey::kUnit, "no unit: part of the enclosing unit",
        [own, scope](Plan& p) {
          own(p);
          unwrap(p, scope.modules);
        },
        [units_of](const Plan& p) { return units_of(p).first == 0; }));
  }
  return out;
}

// An edit that sets a member of the modules' entries.
template <typename Member, typename Value>
PlanEdit entry_edit(
    PlanKey key, const ModuleScope& scope, std::string label, Member member, const Value& value) {
  return module_edit(
      key, std::move(label),
      [=](Plan& p) {
        const auto resolved = scope.resolved(p);
        if (!resolved || !all_are_units(*resolved, scope.modules)) {
          return;
        }
        p = with_own_entries(p, *scope.tree, scope.world_size, scope.modules);
        for (UnitEntry& entry : p.units) {
          for (const std::string& module : scope.modules) {
            if (is_entry_of(entry, module)) {
              entry.*member = value;
            }
          }
        }
      },
      [=](const Plan& p) {
        const auto resolved = scope.resolved(p);
        if (!resolved || !all_are_units(*resolved, scope.modules)) {
          return false;
        }
        const std::set<std::string> names(scope.modules.begin(), scope.modules.end());
        return std::all_of(resolved->units.begin(), resolved->units.end(), [&](const Unit& unit) {
          return !has_any(*resolved, unit, names) || own_entry(*resolved, unit).*member == value;
        });
      });
}

std::vector<PlanEdit> reshard_values(const ModuleScope& scope) {
  using How = Reshard::Kind;
  const auto edit = [&](std::string label, const std::optional<Reshard>& value) {
    return entry_edit(PlanKey::kReshard, scope, std::move(label), &UnitEntry::reshard_after_forward,
                      value);
  };
  std::vector<PlanEdit> out{edit(kPlansOwn, std::nullopt)};
  std::vector<Reshard> values{{How::kYes, 0}, {How::kNo, 0}};
  if (scope.world_size >= 4 && scope.world_size % 2 == 0) {
    values.push_back({How::kSubMesh, scope.world_size / 2});
  }
  for (const Reshard& value : values) {
    out.push_back(edit(reshard_label(value), value));
  }
  return out;
}

std::vector<PlanEdit> precision_values(const ModuleScope& scope) {
  const auto edit = [&](std::string label, const std::optional<MixedPrecision>& value) {
    return entry_edit(PlanKey::kPrecision, scope, std::move(label), &UnitEntry::mixed_precision,
                      value);
  };
  std::vector<PlanEdit> out{edit(kPlansOwn, std::nullopt)};
  for (const NamedPrecision& each : usual_precisions()) {
    out.push_back(edit(std::string(each.label), each.mixed));
  }
  return out;
}

std::vector<PlanEdit> api_values(const ModuleScope& scope) {
  return {entry_edit(PlanKey::kApi, scope, "fully_shard", &UnitEntry::api, Api::kFullyShard),
          entry_edit(PlanKey::kApi, scope, "replicate (full copy per rank, as DDP)",
                     &UnitEntry::api, Api::kReplicate)};
}

// A key of units that is a fact, which their entries may have instead of the plan.
std::vector<PlanEdit> fact_values(PlanKey key,
                                  const ModuleScope& scope,
                                  std::optional<bool> UnitEntry::*member,
                                  const char* if_true,
                                  const char* if_false) {
  return {entry_edit(key, scope, kPlansOwn, member, std::optional<bool>()),
          entry_edit(key, scope, if_true, member, std::optional(true)),
          entry_edit(key, scope, if_false, member, std::optional(false))};
}

// Parameters of a unit that are gathered and reduced by themselves.
std::vector<PlanEdit> group_values(const ModuleScope& scope) {
  using Groups = std::vector<ParameterGroupEntry>;
  const Groups::value_type others, experts{{"**.experts.**"}, true, 0},
      along{{"**.experts.**"}, true, 1}, all_along{{"**"}, false, 1};
  std::vector<PlanEdit> out;
  for (const auto& [label, groups] :
       {std::pair("as usual", Groups{}),
        std::pair("experts on their mesh", Groups{experts, others}),
        std::pair("experts on their mesh, along dimension 1", Groups{along, others}),
        std::pair("all along dimension 1", Groups{all_along})}) {
    out.push_back(entry_edit(PlanKey::kGroups, scope, label, &UnitEntry::groups, groups));
  }
  return out;
}

std::set<std::string> checkpointed(const ResolvedPlan& plan) {
  std::set<std::string> out;
  for (const uint32_t module : plan.checkpointed_modules) {
    out.insert(fqn_of(plan, module));
  }
  return out;
}

// Whether the modules themselves are in the list of those that run again in backward.
std::vector<PlanEdit> checkpoint_values(const ModuleScope& scope) {
  std::vector<PlanEdit> out;
  for (const bool again : {false, true}) {
    out.push_back(module_edit(
        PlanKey::kCheckpoints, again ? "run again in backward" : "keep what backward needs",
        [=](Plan& p) {
          if (const auto resolved = scope.resolved(p)) {
            std::set<std::string> names = checkpointed(*resolved);
            for (const std::string& module : scope.modules) {
              again ? void(names.insert(module)) : void(names.erase(module));
            }
            p.activation_checkpointing.assign(names.begin(), names.end());
          }
        },
        [=](const Plan& p) {
          const auto resolved = scope.resolved(p);
          const std::set<std::string> names =
              resolved ? checkpointed(*resolved) : std::set<std::string>();
          return std::ranges::all_of(scope.modules, [&](const std::string& module) {
            return names.contains(module) == again;
          });
        }));
  }
  return out;
}

bool is_below(std::string_view fqn, const std::string& module) {
  return module.empty() ||
         (fqn.size() > module.size() && fqn.starts_with(module) && fqn[module.size()] == '.');
}

// Whether the parameters of the modules and below them are trained.
std::vector<PlanEdit> frozen_values(const ModuleScope& scope) {
  const auto ours = [modules = scope.modules](const Parameter& parameter) {
    return std::ranges::any_of(
        modules, [&](const std::string& module) { return is_below(parameter.fqn, module); });
  };
  std::vector<PlanEdit> out;
  for (const bool frozen : {false, true}) {
    out.push_back(module_edit(
        PlanKey::kFrozen, frozen ? "no: frozen" : "yes",
        [=](Plan& p) {
          const auto resolved = scope.resolved(p);
          if (!resolved) {
            return;
          }
          if (frozen) {
            for (const std::string& module : scope.modules) {
              p.frozen_parameters.push_back(module.empty() ? "**" : module + ".**");
            }
            return;
          }
          p.frozen_parameters.clear();
          for (const Parameter& each : resolved->tree.parameters) {
            if (!each.requires_grad && !ours(each)) {
              p.frozen_parameters.push_back(each.fqn);
            }
          }
        },
        [=](const Plan& p) {
          const auto resolved = scope.resolved(p);
          return resolved && std::ranges::all_of(resolved->tree.parameters, [&](const auto& each) {
                   return !ours(each) || each.requires_grad != frozen;
                 });
        }));
  }
  return out;
}

}  // namespace

UnitEntry own_entry(const ResolvedPlan& plan, const Unit& unit) {
  UnitEntry out;
  if (unit.entry >= 0) {
    out = plan.plan.units[static_cast<size_t>(unit.entry)];
  }
  out.globs.clear();
  for (const uint32_t module : unit.modules) {
    out.globs.push_back(fqn_of(plan, module));
  }
  out.grouped = unit.modules.size() > 1;
  return out;
}

Plan with_own_entries(const Plan& plan,
                      const ModuleTree& tree,
                      int64_t world_size,
                      const Modules& modules) {
  const ResolvedPlan resolved = plan::resolve(plan, tree, world_size);
  const std::set<std::string> names(modules.begin(), modules.end());
  std::set<int32_t> split;  // entries to replace by one entry per unit
  for (const Unit& unit : resolved.units) {
    if (unit.entry < 0 || has_any(resolved, unit, names)) {
      split.insert(unit.entry);
    }
  }
  Plan out = plan;
  out.units.clear();
  for (size_t e = 0; e < plan.units.size(); ++e) {
    if (!split.contains(static_cast<int32_t>(e))) {
      out.units.push_back(plan.units[e]);
    }
  }
  for (const Unit& unit : resolved.units) {
    // A root without parameters needs no entry.
    if (split.contains(unit.entry) && unit.group == 0 &&
        !(unit.parameters.empty() && unit.entry < 0)) {
      out.units.push_back(own_entry(resolved, unit));
    }
  }
  return out;
}

std::vector<PlanKey> module_keys() {
  return {PlanKey::kUnit,
          PlanKey::kReshard,
          PlanKey::kForwardPrefetch,
          PlanKey::kPrecision,
          PlanKey::kApi,
          PlanKey::kBackwardPrefetch,
          PlanKey::kCheckpoints,
          PlanKey::kFrozen,
          PlanKey::kOffload,
          PlanKey::kOptimizerInBackward,
          PlanKey::kReshardInBackward,
          PlanKey::kAllReduces,
          PlanKey::kUnshardInBackward,
          PlanKey::kTensorStyle,
          PlanKey::kGroups,
          PlanKey::kIgnored};
}

std::vector<PlanEdit> module_values(PlanKey key,
                                    const ModuleTree& tree,
                                    int64_t world_size,
                                    const std::vector<std::string>& modules) {
  const ModuleScope scope{std::make_shared<const ModuleTree>(tree), world_size, modules};
  switch (key) {
    case PlanKey::kUnit:
      return unit_values(scope);
    case PlanKey::kReshard:
      return reshard_values(scope);
    case PlanKey::kForwardPrefetch:
      return forward_prefetch_values(scope);
    case PlanKey::kBackwardPrefetch:
      return backward_prefetch_values(scope);
    case PlanKey::kTensorStyle:
      return tensor_style_values(scope);
    case PlanKey::kIgnored:
      return ignored_values(scope);
    case PlanKey::kGroups:
      return group_values(scope);
    case PlanKey::kPrecision:
      return precision_values(scope);
    case PlanKey::kApi:
      return api_values(scope);
    case PlanKey::kCheckpoints:
      return checkpoint_values(scope);
    case PlanKey::kFrozen:
      return frozen_values(scope);
    case PlanKey::kOffload:
      return fact_values(key, scope, &UnitEntry::cpu_offload, "yes", "no");
    case PlanKey::kOptimizerInBackward:
      return fact_values(key, scope, &UnitEntry::optimizer_in_backward, "in backward",
                         "after backward");
    case PlanKey::kReshardInBackward:
      return fact_values(key, scope, &UnitEntry::reshard_after_backward, "freed",
                         "kept between microbatches");
    case PlanKey::kAllReduces:
      return fact_values(key, scope, &UnitEntry::requires_all_reduce, "every microbatch",
                         "the last microbatch");
    case PlanKey::kUnshardInBackward:
      return fact_values(key, scope, &UnitEntry::unshard_in_backward, "gathered", "not gathered");
    default:
      return {};
  }
}

}  // namespace shardlens::plan
