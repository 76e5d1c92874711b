#include "core/schedule/planned/operator_runs.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "core/workload/differentiated.h"

namespace shardlens::schedule {

std::vector<bool> trained_operators(const plan::Workload& workload,
                                    const plan::ResolvedPlan& plan) {
  std::vector<bool> out;
  if (std::ranges::all_of(plan.tree.parameters, &plan::Parameter::requires_grad)) {
    return out;
  }
  const std::vector<bool> differentiated = plan::differentiated_parameters(plan);
  if (std::ranges::count(differentiated, false) == 0) {
    return out;
  }
  std::unordered_map<std::string_view, bool> trains;
  for (const plan::Module& module : plan.tree.modules) {
    trains[module.fqn] = std::ranges::any_of(
        module.parameters, [&](uint32_t parameter) { return differentiated[parameter]; });
  }
  for (const plan::Operator& op : workload.operators) {
    const auto found = trains.find(op.module);
    out.push_back(found != trains.end() && found->second);
  }
  out.resize(plan::numbers_in(workload), false);  // communication has no parameters
  return out;
}

}  // namespace shardlens::schedule
