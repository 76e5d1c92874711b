#include "core/edits/mesh_values.h"

#include <algorithm>
#include <numeric>

#include "core/mesh/mesh.h"

namespace shardlens::plan {
namespace {

// Only `shard` 1 is no_shard: all ranks along both axes are replicas.
bool only_replicas(const MeshSizes& mesh) {
  return mesh.shard == 1 && !mesh.replicate && mesh.context == 1;
}

// The sizes as a plan file has them: one that follows from the number of ranks is left out, so that
// the plan also fits another number.
MeshSizes as_written(MeshSizes mesh) {
  if (mesh.replicate == 1) {
    mesh.replicate.reset();
    mesh.shard.reset();
  }
  return mesh;
}

}  // namespace

MeshSizes settled_mesh(const MeshSizes& mesh, int64_t ranks) {
  const int64_t data = std::max<int64_t>(1, ranks / (mesh.context * mesh.tensor));
  MeshSizes out = mesh;
  out.replicate = only_replicas(mesh) ? data : mesh.replicate.value_or(1);
  out.shard = mesh.shard.value_or(std::max<int64_t>(1, data / *out.replicate));
  return out;
}

MeshSizes with_degree(const MeshSizes& mesh, std::string_view axis, int64_t degree, int64_t ranks) {
  MeshSizes out = mesh;
  set_axis(out, axis, degree);
  if (axis == mesh::kExpert) {
    return out;
  }
  const int64_t data = std::max<int64_t>(1, ranks / (out.context * out.tensor));
  if (axis == mesh::kShard) {
    out.replicate = std::max<int64_t>(1, data / degree);
    return as_written(out);
  }
  if (axis != mesh::kReplicate && only_replicas(mesh)) {
    out.replicate = data;
    return out;
  }
  if (axis != mesh::kReplicate) {
    out.replicate = std::gcd(mesh.replicate.value_or(1), data);
  }
  out.shard = std::max<int64_t>(1, data / *out.replicate);
  return as_written(out);
}

MeshSizes with_moved(const MeshSizes& mesh,
                     std::string_view from,
                     std::string_view to,
                     int64_t factor,
                     int64_t ranks) {
  MeshSizes out = settled_mesh(mesh, ranks);
  set_axis(out, from, *size_of_axis(out, from) / factor);
  set_axis(out, to, *size_of_axis(out, to) * factor);
  return as_written(out);
}

}  // namespace shardlens::plan
