#include "core/plan/module_tree.h"

#include <algorithm>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/plan/families/model_family.h"
#include "core/plan/model_file.h"

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

int64_t active_parameters(const ModelConfig& config, const ModuleTree& tree) {
  int64_t out = 0;
  for (const Parameter& parameter : tree.parameters) {
    const bool routed =
        config.experts.count > 0 && parameter.fqn.find(".experts.") != std::string::npos;
    out += routed ? parameter.numel / config.experts.count * config.experts.per_token
                  : parameter.numel;
  }
  return out;
}

ModuleTree module_tree(const ModelConfig& config) {
  return config.file != nullptr ? config.file->tree : family_of(config).tree(config);
}

}  // namespace shardlens::plan
