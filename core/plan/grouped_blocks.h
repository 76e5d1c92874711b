#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/plan/plan.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {

// Entries of "units": `together` consecutive blocks of the model are one unit each, and what is
// left belongs to the root. 0: the root is the only unit.
[[nodiscard]] std::vector<UnitEntry> grouped_blocks(const ModuleTree& tree, size_t together);

// Modules outside the blocks that own at least a quarter of the elements of `parameters`, such as
// embeddings and the head; without modules below them and without tied parameters, which belong to
// the unit that contains all of their owners.
[[nodiscard]] std::vector<uint32_t> large_modules(const ModuleTree& tree,
                                                  const std::vector<uint32_t>& parameters);
// The same for all parameters outside the blocks.
[[nodiscard]] std::vector<uint32_t> large_outer_modules(const ModuleTree& tree);

}  // namespace shardlens::plan
