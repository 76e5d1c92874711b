#pragma once

#include "core/base/units.h"

namespace shardlens::plan {
struct ResolvedPlan;
}

namespace shardlens::fsdp {

// How a unit's gradients are divided when they are summed over all ranks. FSDP2 averages in the
// collectives. FSDP1, and FSDP2 with reduce dtype fp16, sums, and divides by one factor before and
// by another after the sum, so that neither the gradients nor their sum leave the dtype's range.
// Source  torch 2.11 _fully_shard/_fsdp_collectives.py (_get_gradient_divide_factors),
//         algorithms/_comm_hooks/default_hooks.py (DefaultState).
struct Reduction {
  bool average_shard = true, average_replicate = true;  // false: the axis' collective sums
  double before = 1;  // gradients are divided by this before the first collective
  double after = 1;   // and by this after the last one
};

// `share`: of the divisor; less than 1 if only some ranks have data.
[[nodiscard]] Reduction reduction_of(const plan::ResolvedPlan& plan, UnitId unit, double share = 1);

}  // namespace shardlens::fsdp
