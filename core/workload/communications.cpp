#include "core/workload/communications.h"

#include <algorithm>

#include "core/base/error.h"

namespace shardlens::plan {
void add_groups_of(const Workload& workload, const ResolvedPlan& from, ResolvedPlan& plan) {
  for (const Communication& each : workload.communications) {
    (void)add_group(from.groups.at(each.group), plan);
  }
}

void change_groups(std::span<const mesh::Group> from,
                   const ResolvedPlan& plan,
                   Workload& workload) {
  for (Communication& each : workload.communications) {
    SHARDLENS_CHECK(each.group < from.size(), "communication has no group");
    const auto found = std::ranges::find(plan.groups, from[each.group].name, &mesh::Group::name);
    SHARDLENS_CHECK(found != plan.groups.end(), "a group of communication is not in the plan");
    each.group = static_cast<mesh::GroupId>(found - plan.groups.begin());
  }
}

void renumber_items(std::span<const WorkloadItem> before,
                    std::span<const std::optional<WorkloadItem>> now,
                    Workload& workload) {
  const auto present = [&](std::optional<WorkloadItem>& item) {
    if (!item) {
      return;
    }
    auto at = static_cast<size_t>(std::ranges::find(before, *item) - before.begin());
    item.reset();
    for (; at < now.size() && !item; ++at) {
      item = now[at];
    }
  };
  for (Communication& each : workload.communications) {
    present(each.waited_by);
    present(each.forward);
  }
}

}  // namespace shardlens::plan
