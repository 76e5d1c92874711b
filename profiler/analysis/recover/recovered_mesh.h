#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "profiler/trace/model/trace.h"
#include "profiler/trace/parallel_axes.h"

namespace shardlens::analysis {

// The ranks over which a unit gathered its parameters, as far as the trace has them.
struct UnitRanks {
  std::string fqn;
  int64_t count = 0;             // 0: not known
  std::vector<int64_t> members;  // empty: not known
};

// How the ranks of a recorded program are arranged.
struct RecoveredMesh {
  plan::MeshSizes sizes;               // replicate and shard are set if they are not the default
  int64_t world_size = 1;              // ranks of a pipeline's stage
  int64_t shard = 1;                   // ranks over which the root's parameters are sharded
  std::vector<trace::ModelAxis> axes;  // along which the model is divided
  std::vector<bool> expert;            // by unit: on the experts' mesh
  std::vector<trace::Diagnostic> diagnostics;
};

// Finds the mesh from the ranks of the units' all-gathers, the process groups of the trace and
// their descriptions. Ranks that FSDP leaves out between two ranks of a group are those of tensor
// parallelism: replicas are further apart than shards. `units`: the root first. `shard`: ranks of
// reduce-scatters, or what else is known of units whose all-gathers are not; 0: nothing.
[[nodiscard]] RecoveredMesh recover_mesh(const trace::Metadata& metadata,
                                         const std::vector<UnitRanks>& units,
                                         int64_t shard);

}  // namespace shardlens::analysis
