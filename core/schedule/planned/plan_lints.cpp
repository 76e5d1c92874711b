#include "core/schedule/planned/plan_lints.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/format_bytes.h"
#include "core/schedule/planned/collective_totals.h"

namespace shardlens::schedule {
namespace {

// The first parameter of the unit of which a rank's part is unaligned; "": the sum only.
std::string unaligned_parameter(const plan::ResolvedPlan& plan, UnitId id, bool reduces) {
  const plan::ShardLayout layout = reduces ? plan.reduced_layout(id) : plan.layout(id);
  if (layout.layout() != plan::Layout::kPerParameter) {
    return "";
  }
  size_t at = 0;  // in the layout
  for (const uint32_t index : plan.units[id].parameters) {
    const plan::Parameter& parameter = plan.tree.parameters[index];
    if (reduces && !parameter.requires_grad) {
      continue;
    }
    const plan::ShardLayout::Slice slice = layout.slice(0, at++);
    const int64_t size = size_of(reduces ? plan.reduce_dtype(id) : plan.unsharded_dtype(id, index));
    if ((slice.numel + slice.padding) * size % kMessageAlignment != 0) {
      return parameter.fqn;
    }
  }
  return "";
}

void find_unaligned(const plan::ResolvedPlan& plan,
                    const std::vector<PlannedCollective>& collectives,
                    std::vector<PlanLint>& out) {
  struct Alike {
    PlanLint lint;
    std::set<UnitId> units;
  };
  std::map<std::pair<CollectiveKind, int64_t>, Alike> found;  // by the bytes of a rank's part
  for (const PlannedCollective& each : collectives) {
    if (each.kind == CollectiveKind::kAllReduce || each.group == mesh::kNoGroup ||
        each.unit >= plan.units.size()) {
      continue;
    }
    const int64_t ranks = plan.groups[each.group].size;
    const int64_t part = each.bytes / std::max<int64_t>(1, ranks);
    if (ranks < 2 || part < kShortMessage || part % kMessageAlignment == 0) {
      continue;
    }
    Alike& alike = found[{each.kind, part}];
    if (alike.units.empty()) {
      const bool reduces = each.kind == CollectiveKind::kReduceScatter;
      const std::string parameter = unaligned_parameter(plan, each.unit, reduces);
      alike.lint = {
          PlanLintKind::kUnalignedMessages, plan.units[each.unit].fqn, 1,
          fmt::format("a rank's part of the {} is {} bytes, {} more than a multiple of {}{}",
                      reduces ? "reduce-scatter" : "all-gather", part, part % kMessageAlignment,
                      kMessageAlignment,
                      parameter.empty() ? "" : fmt::format(", because of {}", parameter))};
    }
    alike.units.insert(each.unit);
  }
  for (auto& [key, alike] : found) {
    alike.lint.units = static_cast<int64_t>(alike.units.size());
    out.push_back(std::move(alike.lint));
  }
}

void find_root_gathers(const plan::ResolvedPlan& plan,
                       const PlannedStep& step,
                       const std::vector<PlannedCollective>& collectives,
                       std::vector<PlanLint>& out) {
  int64_t gathers = 0, forwards = 0;
  Bytes bytes = 0;
  for (const PlannedCollective& each : collectives) {
    if (each.unit == 0 && each.kind == CollectiveKind::kAllGather) {
      ++gathers;
      bytes = each.bytes;
    }
  }
  for (const HookEvent& hook : step.hooks) {
    forwards += hook.hook == Hook::kRootPreForward ? 1 : 0;
  }
  // A model of one unit has nothing else to free.
  if (forwards > 0 && gathers > forwards && plan.units.size() > 1) {
    out.push_back({PlanLintKind::kRootGatheredAgain, plan.units.front().fqn, 1,
                   fmt::format("the root's {} are gathered {} times in a step of {} forward{}",
                               format_bytes(bytes), gathers, forwards, forwards == 1 ? "" : "s")});
  }
}

}  // namespace

std::string_view name_of(PlanLintKind kind) {
  return kind == PlanLintKind::kRootGatheredAgain ? "root_gathered_again" : "unaligned_messages";
}

std::string_view remedy_of(PlanLintKind kind) {
  return kind == PlanLintKind::kRootGatheredAgain
             ? "keep the root's parameters after forward (reshard_after_forward=False): backward "
               "begins with them"
             : "pad that parameter, so that each rank has a multiple of 16 bytes of it, or leave "
               "it "
               "out of the unit (ignored_params): NCCL copies such parts in small pieces";
}

std::vector<PlanLint> plan_lints(const plan::ResolvedPlan& plan, const PlannedStep& step) {
  const std::vector<PlannedCollective> collectives = planned_collectives(plan, step);
  std::vector<PlanLint> out;
  find_root_gathers(plan, step, collectives, out);
  find_unaligned(plan, collectives, out);
  return out;
}

}  // namespace shardlens::schedule
