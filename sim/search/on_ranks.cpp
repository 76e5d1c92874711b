#include "sim/search/on_ranks.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/edits/mesh_values.h"

namespace shardlens::sim {
namespace {

plan::MeshSizes mesh_on(const plan::MeshSizes& mesh, int64_t before, int64_t ranks) {
  plan::MeshSizes out = mesh;
  const plan::MeshSizes settled = plan::settled_mesh(mesh, before);
  const int64_t divided = mesh.context * mesh.tensor;
  if (ranks % divided != 0) {
    throw InputError("", fmt::format("{} ranks are not a multiple of {}, over which the plan "
                                     "divides each sample",
                                     ranks, divided));
  }
  const int64_t rest = ranks / divided;
  const int64_t replicas = settled.replicate.value_or(1), shards = settled.shard.value_or(1);
  if (replicas > 1 && shards > 1) {
    out.shard = std::min(shards, rest);
    if (rest % *out.shard != 0) {
      throw InputError("", fmt::format("{} ranks are not a multiple of the {} shards of a replica",
                                       ranks, shards * divided));
    }
    out.replicate = rest / *out.shard;
  } else if (replicas > 1) {
    out.shard = 1;
    out.replicate = rest;
  } else {
    out.shard = rest;
    out.replicate = 1;
  }
  return out;
}

}  // namespace

Scenario on_ranks(const Scenario& scenario, int64_t ranks) {
  Scenario out = scenario;
  out.plan.mesh = mesh_on(scenario.plan.mesh, scenario.world_size, ranks);
  out.world_size = ranks;
  const std::optional<HardwareSpec>& spec = scenario.machine->spec();
  if (!spec) {
    return out;  // the machine has measured collectives of some numbers of ranks
  }
  const int64_t nodes = (ranks + spec->gpus - 1) / spec->gpus;
  if (nodes > 1 && spec->fabric.network_gbps <= 0) {
    throw InputError("", fmt::format("{} has no network_gbps, so only its {} GPUs can be used",
                                     spec->name, spec->gpus));
  }
  if (nodes != spec->nodes) {
    out.machine = scenario.machine->changed(
        nullptr, [nodes](HardwareSpec& changed) { changed.nodes = nodes; });
  }
  return out;
}

}  // namespace shardlens::sim
