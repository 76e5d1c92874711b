#include "core/schedule/planned/collective_totals.h"

#include <algorithm>
#include <array>

#include "core/plan/unit_sizes.h"
#include "core/schedule/collective_of.h"

namespace shardlens::schedule {
namespace {

Bytes message(const plan::UnitMessages& unit, const Action& action) {
  switch (action.op) {
    case Op::kAllGather:
      return unit.all_gather;
    case Op::kReduceScatter:
      return unit.reduce_scatter;
    default:
      return action.buffer.kind == BufferKind::kReduceOutput ? unit.all_reduce_shard
                                                             : unit.all_reduce_full;
  }
}

}  // namespace

std::vector<PlannedCollective> planned_collectives(const plan::ResolvedPlan& plan,
                                                   const PlannedStep& step) {
  const std::vector<plan::UnitSize> sizes = plan::unit_sizes(plan);
  std::vector<plan::UnitMessages> units;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    units.push_back(plan::unit_messages(plan, id, sizes[id]));
  }
  for (size_t id = units.size(); id < step.unit_names.size(); ++id) {
    const auto bucket = std::ranges::find(step.buckets, step.unit_names[id], &PlannedBucket::name);
    units.push_back({.all_reduce_full = bucket == step.buckets.end() ? 0 : bucket->bytes});
  }
  std::vector<PlannedCollective> out;
  for (const PlannedAction& planned : step.actions) {
    const Action& action = planned.action;
    if (const auto kind = collective_of(action.op)) {
      out.push_back({*kind, action.unit, action.group, message(units.at(action.unit), action)});
    }
  }
  return out;
}

std::vector<CollectiveTotal> collective_totals(const plan::ResolvedPlan& plan,
                                               const PlannedStep& step) {
  std::array<CollectiveTotal, 3> totals{{{.kind = CollectiveKind::kAllGather},
                                         {.kind = CollectiveKind::kReduceScatter},
                                         {.kind = CollectiveKind::kAllReduce}}};
  for (const PlannedCollective& each : planned_collectives(plan, step)) {
    CollectiveTotal& total = *std::ranges::find(totals, each.kind, &CollectiveTotal::kind);
    ++total.count;
    total.bytes += each.bytes;
  }
  std::vector<CollectiveTotal> out;
  std::ranges::copy_if(totals, std::back_inserter(out),
                       [](const CollectiveTotal& total) { return total.count > 0; });
  return out;
}

}  // namespace shardlens::schedule
