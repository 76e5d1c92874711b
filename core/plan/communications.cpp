#include "core/plan/communications.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::plan {
namespace {

bool same_ranks(const mesh::Group& a, const mesh::Group& b) {
  return a.size == b.size && (a.stride == b.stride || a.size == 1);
}

}  // namespace

mesh::GroupId add_group(const mesh::Group& group, ResolvedPlan& plan) {
  const auto found = std::ranges::find(plan.groups, group.name, &mesh::Group::name);
  if (found != plan.groups.end()) {
    if (!same_ranks(*found, group)) {
      throw InputError(
          "", fmt::format("the group '{}' has {} ranks, {} apart; in the plan it has "
                          "{}, {} apart",
                          group.name, group.size, group.stride, found->size, found->stride));
    }
    return static_cast<mesh::GroupId>(found - plan.groups.begin());
  }
  if (plan.groups.size() >= mesh::kNoGroup) {
    throw InputError("", fmt::format("more than {} groups", mesh::kNoGroup));
  }
  plan.groups.push_back(group);
  return static_cast<mesh::GroupId>(plan.groups.size() - 1);
}

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
