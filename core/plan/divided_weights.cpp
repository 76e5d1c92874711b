#include "core/plan/divided_weights.h"

#include <string_view>
#include <vector>

namespace shardlens::plan {

std::unordered_map<std::string, int64_t> divided_weights(const ResolvedPlan& plan) {
  constexpr std::string_view kWeight = ".weight";
  std::unordered_map<std::string, int64_t> out;
  const mesh::GroupId tensor = plan.group_named(mesh::kTensor);
  const bool divides = plan.mesh.size(mesh::kTensor) > 1;
  for (size_t i = 0; i < plan.placements.size() && divides; ++i) {
    std::vector<std::string> names = plan.tree.parameters[i].aliases;
    names.push_back(plan.tree.parameters[i].fqn);
    for (const std::string& name : names) {
      if (plan.placements[i].group == tensor && name.ends_with(kWeight)) {
        out[name.substr(0, name.size() - kWeight.size())] = plan.placements[i].dim;
      }
    }
  }
  return out;
}

}  // namespace shardlens::plan
