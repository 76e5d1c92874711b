#pragma once

#include <vector>

#include "profiler/analysis/timeline/sources.h"

namespace shardlens::analysis {

// From this time of the host on, what it runs or launches is the owner's.
struct OwnerMark {
  Nanoseconds at = 0;
  Owner owner;
};

// Sets the owners of compute and copies that have none.
//
// [Note: Compute between collectives] A unit of a rewritten program has no range. Its forward
// begins where the step waits for its first gather, and ends where it waits for another unit's. Its
// backward ends with the call of its last reduction or, if its parameters are gathered again,
// begins with the wait for them. The loss belongs to the unit that was gathered last. The optimizer
// has its own ranges.
void attribute_program_compute(const Sources& sources,
                               std::vector<OwnerMark> marks,
                               Timeline& timeline);

}  // namespace shardlens::analysis
