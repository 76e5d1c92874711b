#include "sim/engine/rank_costs.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

using plan::Workload;
using plan::WorkloadItem;

// The operators before each other item of a workload's order, and after the last one.
std::vector<std::vector<uint32_t>> operators_between(const Workload& workload) {
  std::vector<std::vector<uint32_t>> out(1);
  for (const WorkloadItem& item : workload.order) {
    if (item.kind == WorkloadItem::Kind::kOperator) {
      out.back().push_back(item.index);
    } else {
      out.emplace_back();
    }
  }
  return out;
}

void add_cost(const OperatorCost& cost, OperatorCost& sum) {
  sum.run.alone += cost.run.alone;
  sum.run.beside += cost.run.beside;
  sum.issue += cost.issue;
}

std::vector<OperatorCost> costs_in_order(const Workload& own,
                                         const std::vector<OperatorCost>& costs,
                                         const Workload& workload) {
  std::vector<OperatorCost> out(workload.operators.size());
  const auto wanted = operators_between(workload), given = operators_between(own);
  SHARDLENS_CHECK(wanted.size() == given.size(), "a rank runs its step in another order");
  OperatorCost left;  // of operators where the workload has none
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (size_t at = 0; at < given[i].size(); ++at) {
      const bool alike = given[i].size() == wanted[i].size();
      add_cost(costs[given[i][at]], wanted[i].empty() ? left : out[wanted[i][alike ? at : 0]]);
    }
    if (!wanted[i].empty()) {
      add_cost(std::exchange(left, OperatorCost{}), out[wanted[i].front()]);
    }
  }
  return out;
}

}  // namespace

bool same_order(const Workload& a, const Workload& b) {
  const auto others = [](const Workload& of) {
    std::vector<WorkloadItem> out;
    std::ranges::copy_if(of.order, std::back_inserter(out), [](const WorkloadItem& item) {
      return item.kind != WorkloadItem::Kind::kOperator;
    });
    return out;
  };
  return a.hooks == b.hooks && others(a) == others(b) &&
         std::ranges::equal(a.communications, b.communications,
                            [](const plan::Communication& x, const plan::Communication& y) {
                              return x.kind == y.kind && x.phase == y.phase && x.unit == y.unit &&
                                     x.group == y.group;
                            });
}

std::vector<RankCosts> rank_costs(const Workload& workload,
                                  std::span<const RankWorkload> of_ranks,
                                  const plan::ResolvedPlan& plan,
                                  const CostModel& model) {
  std::vector<RankCosts> out;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    Workload own = of_ranks[rank].workload;
    for (size_t i = 0; i < own.communications.size(); ++i) {
      plan::Communication& each = own.communications[i];
      for (const int64_t peer : plan.groups.at(each.group).members(static_cast<int64_t>(rank))) {
        const Workload& of_peer = of_ranks[static_cast<size_t>(peer)].workload;
        each.bytes = std::max(each.bytes, of_peer.communications.at(i).bytes);
      }
    }
    const StepCosts costs = step_costs(own, plan, model);
    RankCosts& made = out.emplace_back();
    made.operators = costs_in_order(own, costs.operators, workload);
    made.sums = operator_sums(made.operators);
    made.communications = costs.communications;
  }
  return out;
}

}  // namespace shardlens::sim
