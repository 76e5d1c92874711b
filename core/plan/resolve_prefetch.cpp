#include <algorithm>

#include <fmt/format.h>

#include "core/json/json_reader.h"
#include "core/plan/plan_resolver.h"

namespace shardlens::plan {

UnitId Resolver::unit_named(const std::string& name, const std::string& pointer) const {
  std::vector<std::string> names;
  for (UnitId id = 0; id < out_.units.size(); ++id) {
    const Unit& unit = out_.units[id];
    names.push_back(unit.fqn);
    const bool member = std::any_of(unit.modules.begin(), unit.modules.end(), [&](uint32_t module) {
      return tree_.modules[module].fqn == name;
    });
    if (unit.fqn == name || member) {
      return id;
    }
  }
  fail(pointer,
       fmt::format("'{}' is not a unit; expected a unit's FQN{}", name, suggestion(name, names)));
}

void Resolver::set_prefetch_lists(const std::string& key,
                                  const PrefetchLists& lists,
                                  std::vector<UnitId> Unit::*list,
                                  bool Unit::*has_list) {
  for (const auto& [from, targets] : lists) {
    const std::string pointer = "/" + key + "/" + from;
    Unit& unit = out_.units[unit_named(from, pointer)];
    if (unit.*has_list) {
      fail(pointer, fmt::format("unit '{}' has two lists; expected one", unit.fqn));
    }
    unit.*has_list = true;
    for (size_t i = 0; i < targets.size(); ++i) {
      (unit.*list).push_back(unit_named(targets[i], fmt::format("{}/{}", pointer, i)));
    }
  }
}

void Resolver::expand_forward_depth() {
  if (plan_.dialect != Dialect::kFsdp2 || plan_.forward_prefetch == 0) {
    return;
  }
  std::vector<UnitId> gathered;  // units with an all-gather, in pre-order, without the root
  for (UnitId id = 1; id < out_.units.size(); ++id) {
    if (out_.units[id].api == Api::kFullyShard && !out_.units[id].parameters.empty() &&
        out_.units[id].group == 0) {
      gathered.push_back(id);
    }
  }
  for (UnitId id = 0; id < out_.units.size(); ++id) {
    Unit& unit = out_.units[id];
    if (unit.group > 0) {
      continue;
    }
    const auto next = std::upper_bound(gathered.begin(), gathered.end(), id);
    const auto count = std::min<int64_t>(plan_.forward_prefetch, gathered.end() - next);
    if (unit.api == Api::kFullyShard && count > 0) {
      unit.forward_prefetch.assign(next, next + count);
      unit.has_forward_prefetch_list = true;
    }
  }
}

}  // namespace shardlens::plan
