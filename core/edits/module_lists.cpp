#include "core/edits/module_lists.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/edits/plan_values.h"
#include "core/plan/tensor_styles.h"
#include "core/tree/glob.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;

bool is_gathered(const Unit& unit) {
  return !unit.parameters.empty() && unit.api == Api::kFullyShard && unit.group == 0;
}

// The next `count` units after `unit` in pre-order that have all-gathers.
Names following(const ResolvedPlan& plan, size_t unit, size_t count) {
  Names out;
  for (size_t u = unit + 1; u < plan.units.size() && out.size() < count; ++u) {
    if (is_gathered(plan.units[u])) {
      out.push_back(plan.units[u].fqn);
    }
  }
  return out;
}

// The `count` units whose backward comes after that of `unit`; the root's comes first. An empty
// list is the plan's default, so a unit that prefetches none names itself: it is gathered already.
Names preceding(const ResolvedPlan& plan, size_t unit, size_t count) {
  Names out;
  for (size_t u = unit == 0 ? plan.units.size() : unit; u-- > 1 && out.size() < count;) {
    if (is_gathered(plan.units[u])) {
      out.push_back(plan.units[u].fqn);
    }
  }
  if (out.empty()) {
    out.push_back(plan.units[unit].fqn);
  }
  return out;
}

Names names_of(const ResolvedPlan& plan, const std::vector<UnitId>& units) {
  Names out;
  for (const UnitId u : units) {
    out.push_back(plan.units[u].fqn);
  }
  return out;
}

// Calls `each` with the index of every unit, and whether the modules belong to it; false, without
// calls, if one of the modules is not a unit.
template <class Each>
bool for_units(const ModuleScope& scope, const std::optional<ResolvedPlan>& plan, Each each) {
  if (!plan || !all_are_units(*plan, scope.modules)) {
    return false;
  }
  const std::set<std::string> names = scope.names();
  for (size_t u = 0; u < plan->units.size(); u += plan->units[u].groups) {
    each(u, has_any(*plan, plan->units[u], names));
  }
  return true;
}

PlanEdit forward_edit(const ModuleScope& scope, size_t count) {
  return module_edit(
      PlanKey::kForwardPrefetch, prefetch_label(static_cast<int64_t>(count)),
      [=](Plan& p) {
        const auto resolved = scope.resolved(p);
        PrefetchLists lists;  // the depth is replaced by a list for each of the units
        const bool are_units = for_units(scope, resolved, [&](size_t u, bool ours) {
          const Names list = ours ? following(*resolved, u, count)
                                  : names_of(*resolved, resolved->units[u].forward_prefetch);
          if (!list.empty()) {
            lists[resolved->units[u].fqn] = list;
          }
        });
        if (are_units) {
          p.forward_prefetch_lists = std::move(lists);
          p.forward_prefetch = 0;
        }
      },
      [=](const Plan& p) {
        const auto resolved = scope.resolved(p);
        bool same = true;
        return for_units(scope, resolved,
                         [&](size_t u, bool ours) {
                           same = same && (!ours || names_of(*resolved,
                                                             resolved->units[u].forward_prefetch) ==
                                                        following(*resolved, u, count));
                         }) &&
               same;
      });
}

// `count`: nullopt for the plan's default.
PlanEdit backward_edit(const ModuleScope& scope, std::optional<size_t> count) {
  return module_edit(
      PlanKey::kBackwardPrefetch,
      !count        ? kPlansOwn
      : *count == 1 ? "the unit before"
      : *count == 0 ? "none"
                    : fmt::format("the {} units before", *count),
      [=](Plan& p) {
        const auto resolved = scope.resolved(p);
        PrefetchLists lists;
        const bool are_units = for_units(scope, resolved, [&](size_t u, bool ours) {
          const Unit& unit = resolved->units[u];
          if (ours && count) {
            lists[unit.fqn] = preceding(*resolved, u, *count);
          } else if (!ours && unit.has_backward_prefetch_list) {
            lists[unit.fqn] = names_of(*resolved, unit.backward_prefetch);
          } else if (!ours && p.backward_prefetch == BackwardPrefetch::kNone && is_gathered(unit)) {
            lists[unit.fqn] = preceding(*resolved, u, 0);  // a plan has either a value or lists
          }
        });
        if (are_units && (count || !p.backward_prefetch_lists.empty())) {
          p.backward_prefetch_lists = std::move(lists);
          p.backward_prefetch = BackwardPrefetch::kPre;
        }
      },
      [=](const Plan& p) {
        const auto resolved = scope.resolved(p);
        bool same = true;
        return for_units(scope, resolved,
                         [&](size_t u, bool ours) {
                           const Unit& unit = resolved->units[u];
                           const bool has = count
                                                ? unit.has_backward_prefetch_list &&
                                                      names_of(*resolved, unit.backward_prefetch) ==
                                                          preceding(*resolved, u, *count)
                                                : !unit.has_backward_prefetch_list;
                           same = same && (!ours || has);
                         }) &&
               same;
      });
}

// The glob; where it matches one of the modules, the names of the others that it matches.
Names without(const ModuleTree& tree, const std::string& glob, const std::set<std::string>& names) {
  Names others;
  bool is_among = false;
  for (const Module& module : tree.modules) {
    if (glob_matches(glob, module.fqn)) {
      names.contains(module.fqn) ? void(is_among = true) : others.push_back(module.fqn);
    }
  }
  return is_among ? others : Names{glob};
}

bool any_matches(const Names& globs, const std::string& module) {
  return std::ranges::any_of(globs,
                             [&](const std::string& glob) { return glob_matches(glob, module); });
}

TensorStyle style_in(const Plan& plan, const Module& module) {
  if (plan.tensor_parallel.empty()) {
    return usual_style(module);
  }
  const auto found = std::ranges::find_if(plan.tensor_parallel, [&](const auto& each) {
    return each.second.kind != TensorStyle::Kind::kDimension &&
           glob_matches(each.first, module.fqn);
  });
  return found == plan.tensor_parallel.end() ? TensorStyle{} : found->second;
}

}  // namespace

std::vector<PlanEdit> forward_prefetch_values(const ModuleScope& scope) {
  std::vector<PlanEdit> out;
  for (const size_t count : {0, 1, 2, 3}) {
    out.push_back(forward_edit(scope, count));
  }
  return out;
}

std::vector<PlanEdit> backward_prefetch_values(const ModuleScope& scope) {
  std::vector<PlanEdit> out{backward_edit(scope, std::nullopt)};
  for (const size_t count : {0, 1, 2, 3}) {
    out.push_back(backward_edit(scope, count));
  }
  return out;
}

std::vector<PlanEdit> tensor_style_values(const ModuleScope& scope) {
  using enum TensorStyle::Kind;
  std::vector<PlanEdit> out;
  for (const auto& [label, kind] :
       {std::pair("column: divides what a product gives", kColumn),
        std::pair("row: divides what a product takes", kRow),
        std::pair("vocabulary: divides an embedding's rows", kVocabulary),
        std::pair("sequence: whole, on a part of the sequence", kSequence),
        std::pair("replicate: whole", kReplicate)}) {
    out.push_back(module_edit(
        PlanKey::kTensorStyle, label,
        [=, kind = kind](Plan& p) {
          std::map<std::string, TensorStyle> styles;
          for (const auto& [glob, style] :
               p.tensor_parallel.empty() ? usual_styles(*scope.tree) : p.tensor_parallel) {
            if (style.kind == kDimension) {
              styles[glob] = style;
              continue;
            }
            for (const std::string& name : without(*scope.tree, glob, scope.names())) {
              styles[name] = style;
            }
          }
          for (const std::string& name : scope.modules) {
            const Module* module = scope.tree->find(name);
            if (module == nullptr || module->parameters.empty()) {
              throw InputError(name,
                               "it has no parameters of its own: choose a module that has, such as "
                               "a linear layer");
            }
            styles[name] = {kind};
          }
          p.tensor_parallel = std::move(styles);
        },
        [=, kind = kind](const Plan& p) {
          return std::ranges::all_of(scope.modules, [&](const std::string& name) {
            const Module* module = scope.tree->find(name);
            return module != nullptr && !module->parameters.empty() &&
                   style_in(p, *module).kind == kind;
          });
        }));
  }
  return out;
}

std::vector<PlanEdit> ignored_values(const ModuleScope& scope) {
  std::vector<PlanEdit> out;
  for (const bool ignored : {false, true}) {
    out.push_back(module_edit(
        PlanKey::kIgnored, ignored ? "no: whole on every rank" : "yes",
        [=](Plan& p) {
          Names globs;
          for (const std::string& glob : p.ignored_modules) {
            const Names kept = without(*scope.tree, glob, scope.names());
            globs.insert(globs.end(), kept.begin(), kept.end());
          }
          if (ignored) {
            globs.insert(globs.end(), scope.modules.begin(), scope.modules.end());
          }
          p.ignored_modules = std::move(globs);
        },
        [=](const Plan& p) {
          return std::ranges::all_of(scope.modules, [&](const std::string& name) {
            return any_matches(p.ignored_modules, name) == ignored;
          });
        }));
  }
  return out;
}

}  // namespace shardlens::plan
