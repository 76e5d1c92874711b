#pragma once

#include <optional>
#include <span>

#include "core/mesh/mesh.h"
#include "core/plan/resolved_plan.h"
#include "core/workload/workload.h"

namespace shardlens::plan {

// Whether it adds up gradients, which a microbatch without sync does not.
[[nodiscard]] inline bool sums_gradients(const Communication& communication) {
  return communication.purpose == Purpose::kReduceGradients ||
         communication.purpose == Purpose::kReduceReplicas;
}

// Adds to `plan` the groups of `from` that communications of `workload` use.
// Errors  as add_group().
void add_groups_of(const Workload& workload, const ResolvedPlan& from, ResolvedPlan& plan);

// Changes the groups of communications from those of `from`, ResolvedPlan::groups of another plan,
// to the ones with the same names of `plan`, which has all of them.
void change_groups(std::span<const mesh::Group> from, const ResolvedPlan& plan, Workload& workload);

// Changes the items that communications name, after items of the order were left out or got other
// indices: `now`, by position in `before`, is the item's present one, or nullopt if it was left
// out. What was to wait before an item that was left out waits before the next that was not.
void renumber_items(std::span<const WorkloadItem> before,
                    std::span<const std::optional<WorkloadItem>> now,
                    Workload& workload);

}  // namespace shardlens::plan
