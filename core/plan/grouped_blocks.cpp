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

std::vector<uint32_t> large_modules(const ModuleTree& tree,
                                    const std::vector<uint32_t>& parameters) {
  int64_t all = 0;
  for (const uint32_t parameter : parameters) {
    all += tree.parameters[parameter].numel;
  }
  std::vector<uint32_t> out;
  for (const uint32_t parameter : parameters) {
    const Parameter& each = tree.parameters[parameter];
    const Module& owner = tree.modules[each.module];
    if (each.aliases.empty() && 4 * each.numel >= all && !owner.fqn.empty() &&
        owner.children.empty() && std::find(out.begin(), out.end(), each.module) == out.end()) {
      out.push_back(each.module);
    }
  }
  return out;
}

std::vector<uint32_t> large_outer_modules(const ModuleTree& tree) {
  std::vector<bool> inside(tree.parameters.size(), false);
  for (const uint32_t block : tree.blocks) {
    for (const uint32_t parameter : tree.subtree_parameters(block)) {
      inside[parameter] = true;
    }
  }
  std::vector<uint32_t> outside;
  for (uint32_t i = 0; i < tree.parameters.size(); ++i) {
    if (!inside[i]) {
      outside.push_back(i);
    }
  }
  return large_modules(tree, outside);
}

}  // namespace shardlens::plan
