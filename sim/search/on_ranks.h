#pragma once

#include <cstdint>

#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// The scenario on this many ranks of such nodes. Axes of the mesh that divide the work of a step
// keep their sizes. Of the others, replicas of shards stay replicas of as many shards, and what was
// only sharded or only replicated still is. A rank has as many samples as before.
//
// Errors  InputError for numbers of ranks that such a mesh cannot have, and for more than a node
//         has of a machine without a network.
[[nodiscard]] Scenario on_ranks(const Scenario& scenario, int64_t ranks);

}  // namespace shardlens::sim
