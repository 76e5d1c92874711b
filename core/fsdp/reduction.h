#pragma once

#include "core/base/units.h"

namespace shardlens::plan {
struct ResolvedPlan;
}

namespace shardlens::fsdp {

// How the sum of a unit's gradients over all ranks becomes what the optimizer sees. FSDP2 averages
// in the collectives; FSDP1, and FSDP2 where the dtype is small, sums and divides in two halves, so
// that neither the gradients nor their sum leave the dtype's range.
// Source  torch 2.11 _fully_shard/_fsdp_collectives.py (_get_gradient_divide_factors),
//         algorithms/_comm_hooks/default_hooks.py (DefaultState).
struct Reduction {
  bool average_shard = true, average_replicate = true;  // false: the axis' collective sums
  double before = 1;  // gradients are divided by this before the first collective
  double after = 1;   // and by this after the last one
};

[[nodiscard]] Reduction reduction_of(const plan::ResolvedPlan& plan, UnitId unit);

}  // namespace shardlens::fsdp
