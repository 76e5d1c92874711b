#include "core/plan/resolve_prefetch.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_reader.h"

namespace shardlens::plan {
namespace {

[[noreturn]] void fail(const ResolvedPlan& resolved,
                       const std::string& pointer,
                       const std::string& message) {
  throw InputError(resolved.plan.source + "#" + pointer, message);
}

UnitId unit_named(const ResolvedPlan& resolved,
                  const std::string& name,
                  const std::string& pointer) {
  std::vector<std::string> names;
  for (UnitId id = 0; id < resolved.units.size(); ++id) {
    const Unit& unit = resolved.units[id];
    names.push_back(unit.fqn);
    const bool member = std::any_of(unit.modules.begin(), unit.modules.end(), [&](uint32_t module) {
      return resolved.tree.modules[module].fqn == name;
    });
    if (unit.fqn == name || member) {
      return id;
    }
  }
  fail(resolved, pointer,
       fmt::format("'{}' is not a unit; expected a unit's FQN{}", name, suggestion(name, names)));
}

void set_lists(ResolvedPlan& resolved,
               const std::string& key,
               const PrefetchLists& lists,
               std::vector<UnitId> Unit::*list,
               bool Unit::*has_list) {
  for (const auto& [from, targets] : lists) {
    const std::string pointer = "/" + key + "/" + from;
    Unit& unit = resolved.units[unit_named(resolved, from, pointer)];
    if (unit.*has_list) {
      fail(resolved, pointer, fmt::format("unit '{}' has two lists; expected one", unit.fqn));
    }
    unit.*has_list = true;
    for (size_t i = 0; i < targets.size(); ++i) {
      (unit.*list).push_back(unit_named(resolved, targets[i], fmt::format("{}/{}", pointer, i)));
    }
  }
}

void expand_forward_depth(ResolvedPlan& resolved) {
  const Plan& plan = resolved.plan;
  if (plan.dialect != Dialect::kFsdp2 || plan.forward_prefetch == 0) {
    return;
  }
  std::vector<UnitId> gathered;  // units with an all-gather, in pre-order, without the root
  for (UnitId id = 1; id < resolved.units.size(); ++id) {
    if (resolved.units[id].api == Api::kFullyShard && !resolved.units[id].parameters.empty() &&
        resolved.units[id].group == 0) {
      gathered.push_back(id);
    }
  }
  for (UnitId id = 0; id < resolved.units.size(); ++id) {
    Unit& unit = resolved.units[id];
    if (unit.group > 0) {
      continue;
    }
    const auto next = std::upper_bound(gathered.begin(), gathered.end(), id);
    const auto count = std::min<int64_t>(plan.forward_prefetch, gathered.end() - next);
    if (unit.api == Api::kFullyShard && count > 0) {
      unit.forward_prefetch.assign(next, next + count);
      unit.has_forward_prefetch_list = true;
    }
  }
}

}  // namespace

void resolve_prefetch(ResolvedPlan& resolved) {
  set_lists(resolved, "forward_prefetch", resolved.plan.forward_prefetch_lists,
            &Unit::forward_prefetch, &Unit::has_forward_prefetch_list);
  set_lists(resolved, "backward_prefetch", resolved.plan.backward_prefetch_lists,
            &Unit::backward_prefetch, &Unit::has_backward_prefetch_list);
  expand_forward_depth(resolved);
}

}  // namespace shardlens::plan
