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
#include "core/edits/plan_edits.h"
#include "core/edits/plan_values.h"
#include "core/plan/resolve.h"

namespace shardlens::plan {
namespace {

using Modules = std::vector<std::string>;

constexpr const char* kPlansDefault = "the plan's default";

// The modules that the edits read and changes.
struct Scope {
  std::shared_ptr<const ModuleTree> tree;
  int64_t world_size = 1;
  Modules modules;

  [[nodiscard]] std::optional<ResolvedPlan> resolved(const Plan& plan) const {
    try {
      return plan::resolve(plan, *tree, world_size);
    } catch (const Error&) {
      return std::nullopt;  // the plan is invalid; the panel shows why
    }
  }
};

std::string fqn_of(const ResolvedPlan& plan, uint32_t module) {
  return plan.tree.modules[module].fqn;
}

bool holds_any(const ResolvedPlan& plan, const Unit& unit, const std::set<std::string>& names) {
  return std::any_of(unit.modules.begin(), unit.modules.end(),
                     [&](uint32_t m) { return names.contains(fqn_of(plan, m)); });
}

bool is_entry_of(const UnitEntry& entry, const std::string& module) {
  return std::find(entry.globs.begin(), entry.globs.end(), module) != entry.globs.end();
}

// Whether each of the modules belongs to a unit's modules: it is a unit of its own, or is sharded
// together with other modules.
bool all_are_units(const ResolvedPlan& plan, const Modules& modules) {
  return std::all_of(modules.begin(), modules.end(), [&](const std::string& name) {
    return std::any_of(plan.units.begin(), plan.units.end(),
                       [&](const Unit& unit) { return holds_any(plan, unit, {name}); });
  });
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

// Sets `label`, and the title from it.
PlanEdit edit_of(PlanKey key,
                 std::string label,
                 std::function<void(Plan&)> apply,
                 std::function<bool(const Plan&)> holds) {
  std::string title = fmt::format("{}: {}", plan_key(key).title, label);
  return {key, std::move(label), std::move(title), std::move(apply), std::move(holds), nullptr};
}

std::vector<PlanEdit> unit_values(const Scope& scope) {
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
  out.push_back(edit_of(
      PlanKey::kUnit, several ? "each a unit of its own" : "a unit of its own",
      [own, scope](Plan& p) {
        own(p);
        wrap(p, scope.modules, false);
      },
      [units_of, scope](const Plan& p) {
        return units_of(p) == std::pair(scope.modules.size(), scope.modules.size());
      }));
  if (several) {
    out.push_back(edit_of(
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
    out.push_back(edit_of(
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
    PlanKey key, const Scope& scope, std::string label, Member member, const Value& value) {
  return edit_of(
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
          return !holds_any(*resolved, unit, names) || own_entry(*resolved, unit).*member == value;
        });
      });
}

std::vector<PlanEdit> reshard_values(const Scope& scope) {
  using How = Reshard::Kind;
  const auto edit = [&](std::string label, const std::optional<Reshard>& value) {
    return entry_edit(PlanKey::kReshard, scope, std::move(label), &UnitEntry::reshard_after_forward,
                      value);
  };
  std::vector<PlanEdit> out{edit(kPlansDefault, std::nullopt)};
  std::vector<Reshard> values{{How::kYes, 0}, {How::kNo, 0}};
  if (scope.world_size >= 4 && scope.world_size % 2 == 0) {
    values.push_back({How::kSubMesh, scope.world_size / 2});
  }
  for (const Reshard& value : values) {
    out.push_back(edit(reshard_label(value), value));
  }
  return out;
}

std::vector<PlanEdit> precision_values(const Scope& scope) {
  const auto edit = [&](std::string label, const std::optional<MixedPrecision>& value) {
    return entry_edit(PlanKey::kPrecision, scope, std::move(label), &UnitEntry::mixed_precision,
                      value);
  };
  std::vector<PlanEdit> out{edit(kPlansDefault, std::nullopt)};
  for (const NamedPrecision& each : usual_precisions()) {
    out.push_back(edit(std::string(each.label), each.mixed));
  }
  return out;
}

std::vector<PlanEdit> api_values(const Scope& scope) {
  return {entry_edit(PlanKey::kApi, scope, "fully_shard", &UnitEntry::api, Api::kFullyShard),
          entry_edit(PlanKey::kApi, scope, "replicate (full copy per rank, as DDP)",
                     &UnitEntry::api, Api::kReplicate)};
}

// The next `count` units after `unit` in pre-order that have all-gathers.
std::vector<std::string> following(const ResolvedPlan& plan, size_t unit, size_t count) {
  std::vector<std::string> out;
  for (size_t u = unit + 1; u < plan.units.size() && out.size() < count; ++u) {
    if (!plan.units[u].parameters.empty() && plan.units[u].api == Api::kFullyShard &&
        plan.units[u].group == 0) {
      out.push_back(plan.units[u].fqn);
    }
  }
  return out;
}

std::vector<std::string> names_of(const ResolvedPlan& plan, const std::vector<UnitId>& units) {
  std::vector<std::string> out;
  for (const UnitId u : units) {
    out.push_back(plan.units[u].fqn);
  }
  return out;
}

PlanEdit prefetch_edit(const Scope& scope, int64_t units) {
  const auto count = static_cast<size_t>(units);
  return edit_of(
      PlanKey::kForwardPrefetch, prefetch_label(units),
      [=](Plan& p) {
        const auto resolved = scope.resolved(p);
        if (!resolved || !all_are_units(*resolved, scope.modules)) {
          return;
        }
        const std::set<std::string> names(scope.modules.begin(), scope.modules.end());
        p.forward_prefetch_lists.clear();  // the depth is replaced by a list for each of the units
        p.forward_prefetch = 0;
        for (size_t u = 0; u < resolved->units.size(); u += resolved->units[u].groups) {
          const Unit& unit = resolved->units[u];
          const std::vector<std::string> list = holds_any(*resolved, unit, names)
                                                    ? following(*resolved, u, count)
                                                    : names_of(*resolved, unit.forward_prefetch);
          if (!list.empty()) {
            p.forward_prefetch_lists[unit.fqn] = list;
          }
        }
      },
      [=](const Plan& p) {
        const auto resolved = scope.resolved(p);
        if (!resolved || !all_are_units(*resolved, scope.modules)) {
          return false;
        }
        const std::set<std::string> names(scope.modules.begin(), scope.modules.end());
        for (size_t u = 0; u < resolved->units.size(); u += resolved->units[u].groups) {
          const Unit& unit = resolved->units[u];
          if (holds_any(*resolved, unit, names) &&
              names_of(*resolved, unit.forward_prefetch) != following(*resolved, u, count)) {
            return false;
          }
        }
        return true;
      });
}

std::vector<PlanEdit> prefetch_values(const Scope& scope) {
  std::vector<PlanEdit> out;
  for (const int64_t units : {0, 1, 2, 3}) {
    out.push_back(prefetch_edit(scope, units));
  }
  return out;
}

// A key of units that is a fact, which their entries may have instead of the plan.
std::vector<PlanEdit> fact_values(PlanKey key,
                                  const Scope& scope,
                                  std::optional<bool> UnitEntry::*member,
                                  const char* if_true,
                                  const char* if_false) {
  return {entry_edit(key, scope, kPlansDefault, member, std::optional<bool>()),
          entry_edit(key, scope, if_true, member, std::optional(true)),
          entry_edit(key, scope, if_false, member, std::optional(false))};
}

std::set<std::string> checkpointed(const ResolvedPlan& plan) {
  std::set<std::string> out;
  for (const uint32_t module : plan.checkpointed_modules) {
    out.insert(fqn_of(plan, module));
  }
  return out;
}

// Whether the modules themselves are in the list of those that run again in backward.
std::vector<PlanEdit> checkpoint_values(const Scope& scope) {
  std::vector<PlanEdit> out;
  for (const bool again : {false, true}) {
    out.push_back(edit_of(
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
std::vector<PlanEdit> frozen_values(const Scope& scope) {
  const auto ours = [modules = scope.modules](const Parameter& parameter) {
    return std::ranges::any_of(
        modules, [&](const std::string& module) { return is_below(parameter.fqn, module); });
  };
  std::vector<PlanEdit> out;
  for (const bool frozen : {false, true}) {
    out.push_back(edit_of(
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
    if (unit.entry < 0 || holds_any(resolved, unit, names)) {
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
          PlanKey::kCheckpoints,
          PlanKey::kFrozen,
          PlanKey::kOffload,
          PlanKey::kOptimizerInBackward,
          PlanKey::kReshardInBackward,
          PlanKey::kAllReduces,
          PlanKey::kUnshardInBackward};
}

std::vector<PlanEdit> module_values(PlanKey key,
                                    const ModuleTree& tree,
                                    int64_t world_size,
                                    const std::vector<std::string>& modules) {
  const Scope scope{std::make_shared<const ModuleTree>(tree), world_size, modules};
  switch (key) {
    case PlanKey::kUnit:
      return unit_values(scope);
    case PlanKey::kReshard:
      return reshard_values(scope);
    case PlanKey::kForwardPrefetch:
      return prefetch_values(scope);
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
