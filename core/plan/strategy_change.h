#pragma once

#include <string_view>

#include "core/plan/plan.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {

// `plan` under another strategy, which says how parameters are distributed over the ranks and
// whether they are kept after forward. All else stays: units, the settings of each, prefetch,
// precision, checkpoints, and a mesh that is of the strategy already. Unchanged if the strategy is
// the plan's own. Only from and to `replicate` there are other units, the strategy's. Errors: as
// strategy_plan().
[[nodiscard]] Plan with_strategy(Plan plan, std::string_view strategy, const ModuleTree& tree);

}  // namespace shardlens::plan
