#pragma once

#include <span>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/workload/workload.h"
#include "sim/cost/cost_model.h"
#include "sim/engine/rank_workload.h"
#include "sim/engine/step_costs.h"

namespace shardlens::sim {

// The costs of each rank, whose own workload is `of_ranks` by rank. These have the hooks and
// communications of `workload` in its order, and any operators between them: if so many as
// `workload` has there, one for one, otherwise the first one of `workload` has the time of all.
//
// An all-to-all takes as long as the largest part of a rank of its group.
//
// Errors  InputError for work that `model` has no duration of.
[[nodiscard]] std::vector<RankCosts> rank_costs(const plan::Workload& workload,
                                                std::span<const RankWorkload> of_ranks,
                                                const plan::ResolvedPlan& plan,
                                                const CostModel& model);

// Whether both have the same hooks and communications, whatever their sizes, in the same order.
[[nodiscard]] bool same_order(const plan::Workload& a, const plan::Workload& b);

}  // namespace shardlens::sim
