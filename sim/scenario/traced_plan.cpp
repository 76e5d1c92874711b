#include "sim/scenario/traced_plan.h"

namespace shardlens::sim {

plan::Plan as_run_by(plan::Program program, plan::Plan plan) {
  if (!plan::is_traced(program) || plan.dialect != plan::Dialect::kFsdp2) {
    return plan;
  }
  plan.layout = plan::Layout::kPerParameter;
  if (plan.forward_prefetch == 0 && plan.forward_prefetch_lists.empty()) {
    plan.forward_prefetch = 1;
  }
  return plan;
}

}  // namespace shardlens::sim
