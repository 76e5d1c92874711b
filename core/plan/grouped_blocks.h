#pragma once

#include <cstddef>
#include <vector>

#include "core/plan/module_tree.h"
#include "core/plan/plan.h"

namespace shardlens::plan {

// Entries of "units": `together` consecutive blocks of the model are one unit each, and what is
// left belongs to the root. 0: the root is the only unit.
[[nodiscard]] std::vector<UnitEntry> grouped_blocks(const ModuleTree& tree, size_t together);

}  // namespace shardlens::plan
