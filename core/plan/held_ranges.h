#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/plan/shard_layout.h"

namespace shardlens::plan {

// The `count` ranks first, first + stride, ….
struct RankSet {
  int64_t first = 0, stride = 1, count = 1;
  friend bool operator==(const RankSet&, const RankSet&) = default;
};

// Elements [begin, end) of a parameter, and the index of the first of them in the shard of each
// rank that stores them.
struct HeldRange {
  RankSet ranks;
  int64_t begin = 0, end = 0;
  int64_t shard_begin = 0;
  friend bool operator==(const HeldRange&, const HeldRange&) = default;
};

// The ranges of one parameter that the ranks of a world store between steps, in the order of the
// parameter's elements. A rank that stores none of its elements is in no range. Replicas store the
// same: rank r stores shard r mod layout.ranks().
//
// Units   elements of the parameter and of the unit's shard.
// Errors  RuntimeFault if the world size is not a multiple of the layout's ranks.
[[nodiscard]] std::vector<HeldRange> held_ranges(const ShardLayout& layout,
                                                 int64_t world_size,
                                                 size_t parameter);

// The ranges of the shards that belong to no parameter: alignment and end padding. `begin` is 0.
[[nodiscard]] std::vector<HeldRange> padding_ranges(const ShardLayout& layout, int64_t world_size);

// A parameter and the unit that owns it.
struct ParameterPlace {
  uint32_t parameter = 0;  // index into ModuleTree::parameters
  UnitId unit = kNoUnit;   // kNoUnit: ignored by the plan, unsharded on every rank
  uint32_t index = 0;      // index within the unit
};

// Every parameter of the model once: those of each unit in the unit's order, then the ignored ones.
[[nodiscard]] std::vector<ParameterPlace> parameter_places(const ResolvedPlan& plan);

}  // namespace shardlens::plan
