#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/plan/mesh_sizes.h"
#include "sim/scenario/scenario.h"

// The meshes that a search tries. Every axis of such a mesh has a size.
namespace shardlens::sim {

// Sizes that a search may choose for the axes that divide the work of a step, besides `replicate`
// and `shard`, of which it tries all. Empty: every size.
struct MeshSpace {
  std::vector<int64_t> context{1}, tensor{1}, expert{1};
  std::optional<plan::MeshSizes> only;  // no other mesh than this one

  // Every mesh of every axis.
  [[nodiscard]] static MeshSpace all() {
    return {.context = {}, .tensor = {}, .expert = {}, .only = {}};
  }
};

// Meshes of the axes `replicate` and `shard` on this many ranks, the one without shards first.
[[nodiscard]] std::vector<plan::MeshSizes> data_parallel_meshes(int64_t ranks);

// The meshes of the space on this many ranks, those of data parallelism first. `experts`: whether
// the model has any; without them the axis `expert` has size 1.
[[nodiscard]] std::vector<plan::MeshSizes> meshes(int64_t ranks,
                                                  const MeshSpace& space,
                                                  bool experts);

// Ranks that have samples of their own: those along `replicate` and `shard`.
[[nodiscard]] int64_t data_parallel_ranks(int64_t ranks, const plan::MeshSizes& mesh);
// Samples of all ranks in a step of the scenario. Every mesh of a search has as many, and so the
// same tokens.
[[nodiscard]] int64_t samples_of_step(const Scenario& scenario);

// Why the scenario's model does not run on its plan's mesh; nullopt: it does.
[[nodiscard]] std::optional<std::string> refusal_of_mesh(const Scenario& scenario);

// What a search of the space does not try, besides what its bounds rule out: "context by the method
// ring".
[[nodiscard]] std::vector<std::string> not_tried(const Scenario& scenario, const MeshSpace& space);

// "2 replicas of 4 shards"; with other axes those above 1, "shard 4, tensor 2".
[[nodiscard]] std::string name_of(const plan::MeshSizes& mesh);

}  // namespace shardlens::sim
