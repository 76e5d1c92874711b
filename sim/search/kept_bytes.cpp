#include "sim/search/kept_bytes.h"

namespace shardlens::sim {

KeptBytes kept_bytes(const plan::ResolvedPlan& plan,
                     const std::vector<plan::UnitSize>& sizes,
                     int64_t states) {
  KeptBytes out;
  for (UnitId id = 0; id < sizes.size(); ++id) {
    const plan::Unit& unit = plan.units[id];
    if (unit.cpu_offload) {
      continue;
    }
    const DType master = plan.master_dtype(id);
    out.states += sizes[id].sharded + sizes[id].optimizer_states(states, master);
    out.gradients += unit.optimizer_in_backward ? 0 : sizes[id].reduced_shard * size_of(master);
  }
  return out;
}

}  // namespace shardlens::sim
