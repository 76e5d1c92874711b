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
  const auto messages = [&](const Action& action) -> plan::UnitMessages {
    if (action.unit < plan.units.size()) {
      return plan::unit_messages(plan, action.unit, sizes[action.unit], action.grads);
    }
    const auto bucket =
        std::ranges::find(step.buckets, step.unit_names.at(action.unit), &PlannedBucket::name);
    return {.all_reduce_full = bucket == step.buckets.end() ? 0 : bucket->bytes};
  };
  std::vector<PlannedCollective> out;
  for (const PlannedAction& planned : step.actions) {
    const Action& action = planned.action;
    if (const auto kind = collective_of(action.op)) {
      out.push_back({*kind, action.unit, action.group, message(messages(action), action)});
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
