#include "core/workload/merged_units.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "core/workload/communications.h"

namespace shardlens::plan {
namespace {

// The unit of `coarse` that each unit of `fine` belongs to.
std::optional<std::vector<UnitId>> merged(const ResolvedPlan& fine, const ResolvedPlan& coarse) {
  std::vector<UnitId> owner(fine.tree.parameters.size(), kNoUnit);
  for (UnitId id = 0; id < coarse.units.size(); ++id) {
    for (const uint32_t parameter : coarse.units[id].parameters) {
      owner[parameter] = id;
    }
  }
  std::vector<UnitId> out(fine.units.size(), 0);
  size_t parameters = 0;
  for (UnitId id = 0; id < fine.units.size(); ++id) {
    const std::vector<uint32_t>& own = fine.units[id].parameters;
    if (own.empty()) {
      return std::nullopt;
    }
    out[id] = owner[own.front()];
    parameters += own.size();
    const bool together = std::all_of(
        own.begin(), own.end(), [&](uint32_t parameter) { return owner[parameter] == out[id]; });
    if (out[id] == kNoUnit || !together || fine.param_dtype(id) != coarse.param_dtype(out[id])) {
      return std::nullopt;
    }
  }
  for (const Unit& unit : coarse.units) {
    parameters -= std::min(parameters, unit.parameters.size());
  }
  return out[0] == 0 && parameters == 0 ? std::optional(std::move(out)) : std::nullopt;
}

// A hook is raised for each group of a unit, which are in another order once units are merged.
bool has_several_groups(const ResolvedPlan& plan) {
  return std::ranges::any_of(plan.units, [](const Unit& unit) { return unit.groups > 1; });
}

bool is_of_unit(Hook hook) {
  return hook == Hook::kPreForward || hook == Hook::kPostForward || hook == Hook::kPreBackward ||
         hook == Hook::kGradsReady;
}

bool is_before(Hook hook) {
  return hook == Hook::kPreForward || hook == Hook::kPreBackward;
}

}  // namespace

std::optional<Workload> merge_units(Workload workload,
                                    const ResolvedPlan& fine,
                                    const ResolvedPlan& coarse) {
  const std::optional<std::vector<UnitId>> unit_of = merged(fine, coarse);
  const bool sums = std::ranges::any_of(workload.communications, [](const Communication& each) {
    return each.purpose == Purpose::kReduceReplicas;
  });
  if (!unit_of || sums || has_several_groups(fine) || has_several_groups(coarse) ||
      !std::ranges::all_of(fine.tree.parameters, &Parameter::requires_grad) ||
      std::any_of(workload.hooks.begin(), workload.hooks.end(),
                  [](const HookEvent& event) { return event.recompute; })) {
    return std::nullopt;
  }
  for (Operator& op : workload.operators) {
    op.unit = (*unit_of)[op.unit];
  }
  for (Communication& each : workload.communications) {
    each.unit = (*unit_of)[each.unit];
  }
  std::vector<std::array<size_t, kHookCount>> left(coarse.units.size());
  for (HookEvent& event : workload.hooks) {
    event.unit = (*unit_of)[event.unit];
    ++left[event.unit][static_cast<size_t>(event.hook)];
  }
  const std::vector<std::array<size_t, kHookCount>> all = left;
  const std::vector<HookEvent> hooks = std::exchange(workload.hooks, {});
  const std::vector<WorkloadItem> order = std::exchange(workload.order, {});
  workload.order.reserve(order.size());
  std::vector<std::optional<WorkloadItem>> now(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const WorkloadItem& item = order[i];
    if (item.kind != WorkloadItem::Kind::kHook) {
      now[i] = workload.order.emplace_back(item);
      continue;
    }
    const HookEvent& event = hooks[item.index];
    const auto hook = static_cast<size_t>(event.hook);
    const size_t before = left[event.unit][hook]--;
    const bool first = before == all[event.unit][hook], last = before == 1;
    if (!is_of_unit(event.hook) || (is_before(event.hook) ? first : last)) {
      now[i] = workload.order.emplace_back(
          WorkloadItem{item.kind, static_cast<uint32_t>(workload.hooks.size())});
      workload.hooks.push_back(event);
    }
  }
  renumber_items(order, now, workload);
  return workload;
}

}  // namespace shardlens::plan
