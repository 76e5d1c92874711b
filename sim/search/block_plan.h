#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/tree/module_tree.h"
#include "core/workload/step_settings.h"
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

// Settings of a whole plan whose blocks have settings of their own.
struct PlanFrame {
  int64_t batch = 1, accumulate = 1;
  int64_t shard = 1;  // ranks of the mesh's shard axis
  int64_t forward_prefetch = 0;
  size_t blocks_per_unit = 1;   // where a search begins; blocks choose for themselves
  bool outer_units = false;     // embeddings and head are units of their own, not parts of the root
  plan::CheckpointSaves saves;  // of every checkpointed block
  PrefetchCounts root_prefetch = {};
  std::optional<Precision> precision = {};  // nullopt: the base plan's
};

// All frames: microbatches, meshes, prefetch depths 0 to 2, 1 or 2 blocks in a unit, embeddings
// apart or not, and what checkpointed blocks keep; in each of the precisions (none: the base
// plan's).
[[nodiscard]] std::vector<PlanFrame> plan_frames(const plan::ModuleTree& tree,
                                                 int64_t ranks,
                                                 int64_t samples,
                                                 const std::vector<Precision>& precisions = {});

// Choices of a frame: units of its size, all kept or none, no checkpoints.
[[nodiscard]] BlockChoices uniform_choices(const PlanFrame& frame, size_t blocks, bool kept);

// The plan; other settings, such as the layout, are those of `base`.
[[nodiscard]] plan::Plan plan_of(const PlanFrame& frame,
                                 const BlockChoices& choices,
                                 const plan::Plan& base,
                                 const plan::ModuleTree& tree,
                                 int64_t ranks);

// "one block a unit, 3 of 80 units kept after forward, 12 of 80 blocks checkpointed (saving
// attention), sharded over 8 ranks, forward prefetch 1, 2 x 4"
[[nodiscard]] std::string name_of(const PlanFrame& frame,
                                  const BlockChoices& choices,
                                  int64_t ranks);

}  // namespace shardlens::sim
