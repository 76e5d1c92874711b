#include "core/tree/module_tree.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"

namespace shardlens::plan {

const Module* ModuleTree::find(std::string_view fqn) const {
  const auto found = std::find_if(modules.begin(), modules.end(),
                                  [&](const Module& module) { return module.fqn == fqn; });
  return found == modules.end() ? nullptr : &*found;
}

std::vector<uint32_t> ModuleTree::subtree_parameters(uint32_t module) const {
  SHARDLENS_CHECK(module < modules.size(), "module index outside the tree");
  std::vector<uint32_t> out;
  std::set<uint32_t> seen;
  std::vector<uint32_t> stack{module};
  while (!stack.empty()) {
    const Module& current = modules[stack.back()];
    stack.pop_back();
    for (const uint32_t parameter : current.parameters) {
      if (seen.insert(parameter).second) {
        out.push_back(parameter);
      }
    }
    stack.insert(stack.end(), current.children.rbegin(), current.children.rend());
  }
  return out;
}

}  // namespace shardlens::plan
