#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"

namespace shardlens::plan {

// Elements of a unit's flat parameter and of a rank's shard, padding included; the same of what a
// reduction carries (ResolvedPlan::reduced_layout); and what an optimizer steps on (stepped_numel).
struct UnitSize {
  int64_t full = 0, shard = 0;
  int64_t reduced = 0, reduced_shard = 0, stepped = 0;
  friend bool operator==(const UnitSize&, const UnitSize&) = default;
};

// Of every unit, as ResolvedPlan::layout has them; a unit like the one before it is not laid out
// again.
[[nodiscard]] std::vector<UnitSize> unit_sizes(const ResolvedPlan& plan);

}  // namespace shardlens::plan
