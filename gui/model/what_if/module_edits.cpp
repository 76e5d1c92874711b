#include "gui/model/what_if/module_edits.h"

#include <algorithm>
#include <optional>
#include <set>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/plan/resolve.h"

namespace shardlens::gui {
namespace {

using plan::Plan;
using plan::ResolvedPlan;
using plan::UnitEntry;
using Choice = PlanKnob::Choice;
using Modules = std::vector<std::string>;

// The modules that a knob reads and changes.
struct Scope {
  plan::ModuleTree tree;
  int64_t world_size = 1;
  Modules modules;

  [[nodiscard]] std::optional<ResolvedPlan> resolved(const Plan& plan) const {
    try {
      return plan::resolve(plan, tree, world_size);
    } catch (const Error&) {
      return std::nullopt;  // the plan is invalid; the panel shows why
    }
  }
};

std::string fqn_of(const ResolvedPlan& plan, uint32_t module) {
  return plan.tree.modules[module].fqn;
}

UnitEntry entry_of(const ResolvedPlan& plan, const plan::Unit& unit) {
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

bool holds_any(const ResolvedPlan& plan,
               const plan::Unit& unit,
               const std::set<std::string>& names) {
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
                       [&](const plan::Unit& unit) { return holds_any(plan, unit, {name}); });
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

PlanKnob unit_knob(const Scope& scope) {
  PlanKnob knob{
      QObject::tr("Unit"), QObject::tr("Whether the module is a unit, sharded separately"), {}};
  const auto own = [scope](Plan& p) {
    p = with_own_entries(p, scope.tree, scope.world_size, scope.modules);
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
  knob.choices.push_back(
      {several ? QObject::tr("each a unit of its own") : QObject::tr("a unit of its own"),
       [own, scope](Plan& p) {
         own(p);
         wrap(p, scope.modules, false);
       },
       [units_of, scope](const Plan& p) {
         return units_of(p) == std::pair(scope.modules.size(), scope.modules.size());
       }});
  if (several) {
    knob.choices.push_back({QObject::tr("all together in one unit"),
                            [own, scope](Plan& p) {
                              own(p);
                              wrap(p, scope.modules, true);
                            },
                            [units_of, scope](const Plan& p) {
                              return units_of(p) == std::pair(scope.modules.size(), size_t{1});
                            }});
  }
  if (scope.modules != Modules{""}) {  // the root unit holds the remaining parameters
    knob.choices.push_back({QObject::tr("no unit: part of the enclosing unit"),
                            [own, scope](Plan& p) {
                              own(p);
                              unwrap(p, scope.modules);
                            },
                            [units_of](const Plan& p) { return units_of(p).first == 0; }});
  }
  return knob;
}

// A choice that sets a member of the modules' entries.
template <typename Member, typename Value>
Choice entry_choice(const Scope& scope, const QString& label, Member member, const Value& value) {
  return {label,
          [=](Plan& p) {
            const auto resolved = scope.resolved(p);
            if (!resolved || !all_are_units(*resolved, scope.modules)) {
              return;
            }
            p = with_own_entries(p, scope.tree, scope.world_size, scope.modules);
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
            return std::all_of(resolved->units.begin(), resolved->units.end(),
                               [&](const plan::Unit& unit) {
                                 return !holds_any(*resolved, unit, names) ||
                                        entry_of(*resolved, unit).*member == value;
                               });
          }};
}

PlanKnob reshard_knob(const Scope& scope) {
  using How = plan::Reshard::Kind;
  using Value = std::optional<plan::Reshard>;
  const auto choice = [&](const QString& label, const Value& value) {
    return entry_choice(scope, label, &UnitEntry::reshard_after_forward, value);
  };
  PlanKnob knob{QObject::tr("Reshard"),
                QObject::tr("Whether the unit's parameters are freed between forward and backward"),
                {choice(QObject::tr("the plan's default"), std::nullopt),
                 choice(QObject::tr("freed after forward"), plan::Reshard{How::kYes, 0}),
                 choice(QObject::tr("kept for backward"), plan::Reshard{How::kNo, 0})}};
  if (scope.world_size >= 4 && scope.world_size % 2 == 0) {
    knob.choices.push_back(choice(QObject::tr("kept over half the ranks"),
                                  plan::Reshard{How::kSubMesh, scope.world_size / 2}));
  }
  return knob;
}

PlanKnob precision_knob(const Scope& scope) {
  using Value = std::optional<plan::MixedPrecision>;
  const auto choice = [&](const QString& label, const Value& value) {
    return entry_choice(scope, label, &UnitEntry::mixed_precision, value);
  };
  return {QObject::tr("Dtype"),
          QObject::tr("Dtype of the unit's gathered parameters and reduced gradients"),
          {choice(QObject::tr("the plan's default"), std::nullopt),
           choice(QObject::tr("fp32"), plan::MixedPrecision{}),
           choice(QObject::tr("bf16, gradients reduced in fp32"),
                  plan::MixedPrecision{DType::kBF16, DType::kF32, {}, {}, {}}),
           choice(QObject::tr("bf16, gradients too"),
                  plan::MixedPrecision{DType::kBF16, DType::kBF16, {}, {}, {}})}};
}

PlanKnob strategy_knob(const Scope& scope) {
  const auto choice = [&](const QString& label, plan::Api api) {
    return entry_choice(scope, label, &UnitEntry::api, api);
  };
  return {QObject::tr("Strategy"),
          QObject::tr("Which API shards the unit"),
          {choice(QObject::tr("fully_shard"), plan::Api::kFullyShard),
           choice(QObject::tr("replicate (full copy per rank, as DDP)"), plan::Api::kReplicate)}};
}

// The next `count` units after `unit` in pre-order that have all-gathers.
std::vector<std::string> following(const ResolvedPlan& plan, size_t unit, size_t count) {
  std::vector<std::string> out;
  for (size_t u = unit + 1; u < plan.units.size() && out.size() < count; ++u) {
    if (!plan.units[u].parameters.empty() && plan.units[u].api == plan::Api::kFullyShard &&
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

Choice prefetch_choice(const Scope& scope, const QString& label, size_t count) {
  return {
      label,
      [=](Plan& p) {
        const auto resolved = scope.resolved(p);
        if (!resolved || !all_are_units(*resolved, scope.modules)) {
          return;
        }
        const std::set<std::string> names(scope.modules.begin(), scope.modules.end());
        p.forward_prefetch_lists.clear();  // the depth is replaced by a list for each of the units
        p.forward_prefetch = 0;
        for (size_t u = 0; u < resolved->units.size(); u += resolved->units[u].groups) {
          const plan::Unit& unit = resolved->units[u];
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
          const plan::Unit& unit = resolved->units[u];
          if (holds_any(*resolved, unit, names) &&
              names_of(*resolved, unit.forward_prefetch) != following(*resolved, u, count)) {
            return false;
          }
        }
        return true;
      }};
}

PlanKnob prefetch_knob(const Scope& scope) {
  return {QObject::tr("Prefetch"),
          QObject::tr("How many later units are gathered in forward before this unit computes"),
          {prefetch_choice(scope, QObject::tr("none"), 0),
           prefetch_choice(scope, QObject::tr("the next unit"), 1),
           prefetch_choice(scope, QObject::tr("the next two"), 2),
           prefetch_choice(scope, QObject::tr("the next three"), 3)}};
}

}  // namespace

Plan with_own_entries(const Plan& plan,
                      const plan::ModuleTree& tree,
                      int64_t world_size,
                      const Modules& modules) {
  const ResolvedPlan resolved = plan::resolve(plan, tree, world_size);
  const std::set<std::string> names(modules.begin(), modules.end());
  std::set<int32_t> split;  // entries to replace by one entry per unit
  for (const plan::Unit& unit : resolved.units) {
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
  for (const plan::Unit& unit : resolved.units) {
    // A root without parameters needs no entry.
    if (split.contains(unit.entry) && unit.group == 0 &&
        !(unit.parameters.empty() && unit.entry < 0)) {
      out.units.push_back(entry_of(resolved, unit));
    }
  }
  return out;
}

std::vector<PlanKnob> module_knobs(const plan::ModuleTree& tree,
                                   int64_t world_size,
                                   const Modules& modules) {
  const Scope scope{tree, world_size, modules};
  return {unit_knob(scope), reshard_knob(scope), prefetch_knob(scope), precision_knob(scope),
          strategy_knob(scope)};
}

QString module_plan_text(const ResolvedPlan& plan, uint32_t module) {
  const auto found = std::find_if(plan.units.begin(), plan.units.end(), [&](const auto& unit) {
    return std::find(unit.modules.begin(), unit.modules.end(), module) != unit.modules.end();
  });
  if (found == plan.units.end()) {
    return {};
  }
  using How = plan::Reshard::Kind;
  QStringList words{found->modules.size() > 1 ? QObject::tr("unit of %1").arg(found->modules.size())
                                              : QObject::tr("unit")};
  if (found->api == plan::Api::kReplicate) {
    words.append(QObject::tr("replicate"));
  } else if (found->reshard_after_forward.kind == How::kNo) {
    words.append(QObject::tr("kept"));
  } else if (found->reshard_after_forward.kind == How::kSubMesh) {
    words.append(QObject::tr("kept over %1").arg(found->reshard_after_forward.ranks));
  }
  if (const auto dtype = found->mixed_precision.param_dtype) {
    words.append(QString::fromStdString(std::string(plan_name(*dtype))));
  }
  if (!found->forward_prefetch.empty()) {
    words.append(QStringLiteral("→%1").arg(found->forward_prefetch.size()));
  }
  return words.join(QStringLiteral(", "));
}

PlanStanding standing_of(const Plan& plan, const plan::ModuleTree& tree, int64_t world_size) {
  PlanStanding out{false, {}};
  try {
    // Also checked as a plan file: some keys are valid only with one API.
    (void)plan::parse_plan(plan::to_json(plan), plan.source);
    const ResolvedPlan resolved = plan::resolve(plan, tree, world_size);
    out.resolves = true;
    plan::require_engine_support(resolved);
  } catch (const Error& error) {
    out.why = QString::fromStdString(error.what());
  }
  return out;
}

}  // namespace shardlens::gui
