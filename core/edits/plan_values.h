#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/tree/module_tree.h"

// Applies and names values of a plan's keys: the parts of edits (plan_edits.h), for callers that
// set many keys at once.
namespace shardlens::plan {

void set_mesh(Plan& plan, int64_t replicate, int64_t shard);
// Prefetch lists name units, so they are dropped.
void set_units(Plan& plan, std::vector<UnitEntry> units);
// Sets it for all units.
void set_reshard(Plan& plan, const Reshard& reshard);
void set_forward_prefetch(Plan& plan, int64_t depth);
void set_backward_prefetch(Plan& plan, BackwardPrefetch prefetch);
// One of every `every` blocks is checkpointed, from the first one on; 0: none.
void set_checkpoints(Plan& plan, const ModuleTree& tree, size_t every);
[[nodiscard]] std::vector<std::string> checkpointed_blocks(const ModuleTree& tree, size_t every);

// "2 blocks a unit"; 0: "the model as one unit".
[[nodiscard]] std::string units_label(size_t together);
// "sharded over 8 ranks", "2 replicas of 4 shards", "not sharded".
[[nodiscard]] std::string mesh_label(int64_t replicate, int64_t shard);
// "kept after forward".
[[nodiscard]] std::string reshard_label(const Reshard& reshard);
// "the next 2 units"; 0: "none".
[[nodiscard]] std::string prefetch_label(int64_t units);

}  // namespace shardlens::plan
