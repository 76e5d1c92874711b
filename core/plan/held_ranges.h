#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/plan/shard_layout.h"

namespace shardlens::plan {

// The ranks first, first + stride, …: `count` of them.
struct RankSet {
  int64_t first = 0, stride = 1, count = 1;
  friend bool operator==(const RankSet&, const RankSet&) = default;
};

// Elements [begin, end) of a parameter, and where the first of them lies in the shard of each rank
// that holds them.
struct HeldRange {
  RankSet ranks;
  int64_t begin = 0, end = 0;
  int64_t shard_begin = 0;
  friend bool operator==(const HeldRange&, const HeldRange&) = default;
};

// What the ranks of a world hold of one parameter between steps, in the order of its elements; a
// rank that holds nothing of it is in no range. Replicas hold the same: rank r holds shard
// r mod layout.ranks().
//
// Units   elements of the parameter and of the unit's shard.
// Errors  RuntimeFault where the world size is no multiple of the layout's ranks.
[[nodiscard]] std::vector<HeldRange> held_ranges(const ShardLayout& layout,
                                                 int64_t world_size,
                                                 size_t parameter);

// What of the shards belongs to no parameter: alignment and end padding. `begin` is 0.
[[nodiscard]] std::vector<HeldRange> padding_ranges(const ShardLayout& layout, int64_t world_size);

// A parameter and where it belongs.
struct ParameterPlace {
  uint32_t parameter = 0;  // index into ModuleTree::parameters
  UnitId unit = kNoUnit;   // kNoUnit: ignored by the plan, whole on every rank
  uint32_t index = 0;      // within the unit
};

// Every parameter of the model once: those of each unit in its order, then those that are ignored.
[[nodiscard]] std::vector<ParameterPlace> parameter_places(const ResolvedPlan& plan);

}  // namespace shardlens::plan
