#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/plan/mesh_sizes.h"
#include "core/plan/plan.h"
#include "sim/scenario/scenario.h"
#include "sim/search/precision.h"

namespace shardlens::sim {

// How many units a unit prefetches, if not as many as the rest of the plan: the next ones in
// forward, those before it in backward. Written as lists of the plan.
struct PrefetchCounts {
  static constexpr int16_t kAsPlan = -1;  // the plan's depth in forward, 1 in backward
  int16_t forward = kAsPlan, backward = kAsPlan;
  friend bool operator==(const PrefetchCounts&, const PrefetchCounts&) = default;
};

// Settings of one block of the model.
struct BlockChoice {
  bool starts = true;  // a unit; false: the block belongs to the unit of the block before it
  bool kept = false;   // its unit stays gathered after forward; only where `starts`
  bool checkpointed = false;
  PrefetchCounts prefetch = {};  // of its unit; only where `starts`
  friend bool operator==(const BlockChoice&, const BlockChoice&) = default;
};
using BlockChoices = std::vector<BlockChoice>;

// One point of the space that searches try: a plan, and how the samples of a step are divided.
struct Candidate {
  int64_t blocks_per_unit = 1;  // 0: the whole model is one unit
  int64_t shard = 1;            // ranks of the mesh's shard axis
  bool reshard = true;          // after forward
  bool backward_prefetch = true;
  int64_t forward_prefetch = 0;  // depth
  bool checkpoint = false;       // every block is checkpointed
  int64_t batch = 1, accumulate = 1;
  bool cpu_offload = false;                 // even if the base plan has none
  std::optional<Precision> precision = {};  // nullopt: the base plan's
  // Settings of single blocks, instead of blocks_per_unit, reshard, backward_prefetch and
  // checkpoint. Empty: all blocks are alike, and the rest is not used.
  BlockChoices blocks = {};
  bool outer_units = false;  // embeddings and head are units of their own, not parts of the root
  plan::CheckpointSaves saves = {};  // of every checkpointed block
  PrefetchCounts root_prefetch = {};
  // The mesh's axes that divide the work of a step; what they and `shard` leave replicates.
  int64_t context = 1, tensor = 1, expert = 1;
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// The mesh of a candidate on `ranks` ranks, every axis with its size; and the reverse.
[[nodiscard]] plan::MeshSizes mesh_of(const Candidate& candidate, int64_t ranks);
void set_mesh(Candidate& candidate, const plan::MeshSizes& mesh);
// Whether any parameters are gathered.
[[nodiscard]] bool gathers(const Candidate& candidate);
// The sizes into which a rank's samples per step can be divided as microbatches, sorted.
[[nodiscard]] std::vector<int64_t> batch_sizes(int64_t samples);

// All candidates without cpu_offload, in the base plan's precision, of a model on `ranks` ranks. A
// rank's `samples` sequences per step are divided into microbatches in every way. Candidates with
// the same units and checkpoints are adjacent, and candidates that differ only in their microbatch
// are sorted by its size.
[[nodiscard]] std::vector<Candidate> candidates(const plan::ModuleTree& tree,
                                                int64_t ranks,
                                                int64_t samples);
// The same on these meshes, whose data-parallel ranks all have this many samples.
[[nodiscard]] std::vector<Candidate> candidates(const plan::ModuleTree& tree,
                                                std::span<const plan::MeshSizes> meshes,
                                                int64_t samples);

// The candidate's plan; settings that a candidate does not have, such as the layout, are those of
// `base`.
[[nodiscard]] plan::Plan plan_of(const Candidate& candidate,
                                 const plan::Plan& base,
                                 const plan::ModuleTree& tree,
                                 int64_t ranks);

// The same from a plan_of() that has the candidate's units, checkpoints and precision: sets what
// else it decides. Not for candidates with settings of single blocks.
void set_run(plan::Plan& plan, const Candidate& candidate, int64_t ranks);

// The base scenario with the candidate's plan and microbatches: what evaluate() predicts of it.
[[nodiscard]] Scenario scenario_of(const Candidate& candidate, const Scenario& base);

// "2 blocks a unit, 2 replicas of 4 shards, kept after forward, checkpointed, 2 x 4": for
// output, and the candidate's key in a state file. With settings of single blocks: "one block a
// unit, 3 of 80 units kept after forward, 12 of 80 blocks checkpointed (saving attention), sharded
// over 8 ranks, forward prefetch 1, 2 x 4".
[[nodiscard]] std::string name_of(const Candidate& candidate, int64_t ranks);

}  // namespace shardlens::sim
