#pragma once

#include <cstdint>
#include <string_view>

#include "core/plan/mesh_sizes.h"

// Changes of the sizes of a plan's mesh that keep the number of ranks.
namespace shardlens::plan {

// `mesh` with the sizes of `replicate` and `shard` that plan::resolve() gives it over this many
// ranks. The sizes need not fit.
[[nodiscard]] MeshSizes settled_mesh(const MeshSizes& mesh, int64_t ranks);

// Another size of an axis. What the ranks leave then is the size of `shard`, or of `replicate` if
// `axis` is `shard` or if the mesh has only replicas; replicas become fewer where they no longer
// fit. `expert` changes no other axis. A size that the ranks cannot have is left for
// plan::resolve() to refuse.
[[nodiscard]] MeshSizes with_degree(const MeshSizes& mesh,
                                    std::string_view axis,
                                    int64_t degree,
                                    int64_t ranks);

// `factor` of the size of one axis becomes a part of another one's: shard 8 and tensor 1 become
// shard 4 and tensor 2. The factor of the whole size merges the axis into the other one. `factor`
// divides the size of `from`; neither axis is `expert`.
[[nodiscard]] MeshSizes with_moved(const MeshSizes& mesh,
                                   std::string_view from,
                                   std::string_view to,
                                   int64_t factor,
                                   int64_t ranks);

}  // namespace shardlens::plan
