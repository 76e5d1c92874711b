#include "core/workload/differentiated.h"

namespace shardlens::plan {

std::vector<bool> differentiated_parameters(const ResolvedPlan& plan) {
  std::vector<bool> out;
  for (const Parameter& parameter : plan.tree.parameters) {
    out.push_back(parameter.requires_grad);
  }
  const bool fsdp1 = plan.plan.dialect == Dialect::kFsdp1;
  for (UnitId id = 0; id < plan.units.size() && fsdp1; ++id) {
    const bool shared = plan.units[id].api == Api::kFullyShard && !plan.is_frozen(id);
    for (const uint32_t parameter : plan.units[id].parameters) {
      out[parameter] = shared || out[parameter];
    }
  }
  return out;
}

}  // namespace shardlens::plan
