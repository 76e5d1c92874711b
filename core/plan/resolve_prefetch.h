#pragma once

#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// Sets the prefetch lists of a plan's units: the explicit ones and, in fsdp2, which has only lists,
// those of a depth. (fsdp1 prefetches by itself, in the order of the previous step.)
// Errors: InputError with JSON pointer for a name that is not a unit, and for two lists of a unit.
void resolve_prefetch(ResolvedPlan& resolved);

}  // namespace shardlens::plan
