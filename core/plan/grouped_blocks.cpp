#include "core/plan/grouped_blocks.h"

#include <algorithm>

namespace shardlens::plan {

std::vector<UnitEntry> grouped_blocks(const ModuleTree& tree, size_t together) {
  std::vector<UnitEntry> out;
  const size_t blocks = together == 0 ? 0 : tree.blocks.size();
  for (size_t first = 0; first < blocks; first += together) {
    UnitEntry& entry = out.emplace_back();
    entry.grouped = together > 1;
    for (size_t i = first; i < std::min(blocks, first + together); ++i) {
      entry.globs.push_back(tree.modules[tree.blocks[i]].fqn);
    }
  }
  out.emplace_back().globs = {""};
  return out;
}

}  // namespace shardlens::plan
