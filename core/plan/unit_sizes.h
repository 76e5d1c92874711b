#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/resolved_plan.h"

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

// What a unit's collectives carry: the larger message of each (an all-gather's output, also over a
// sub-mesh; a reduce-scatter's input). An all-reduce is over a reduced shard, or over the whole
// unit where nothing is sharded.
struct UnitMessages {
  Bytes all_gather = 0, reduce_scatter = 0, all_reduce_shard = 0, all_reduce_full = 0;
};
[[nodiscard]] UnitMessages unit_messages(const ResolvedPlan& plan, UnitId id, const UnitSize& size);

}  // namespace shardlens::plan
