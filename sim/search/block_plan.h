#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/tree/module_tree.h"
#include "sim/search/candidates.h"

// Candidates whose blocks have settings of their own.
namespace shardlens::sim {

// All candidates without settings of their blocks, from which a search per block begins: frames.
// They differ in microbatches, meshes, prefetch depths 0 to 2, 1 or 2 blocks in a unit (where a
// search begins; blocks choose for themselves), embeddings apart or not, and what checkpointed
// blocks keep; in each of the precisions (none: the base plan's).
[[nodiscard]] std::vector<Candidate> plan_frames(const plan::ModuleTree& tree,
                                                 int64_t ranks,
                                                 int64_t samples,
                                                 const std::vector<Precision>& precisions = {});

// Choices of a frame: units of its size, all kept or none, no checkpoints.
[[nodiscard]] BlockChoices uniform_choices(const Candidate& frame, size_t blocks, bool kept);

// The frame with these settings of its blocks.
[[nodiscard]] Candidate with_blocks(const Candidate& frame, BlockChoices blocks);

// The part of plan_of() that is of single blocks: units, what is kept, checkpoints, and prefetch
// lists where they differ from the plan's depth.
void set_blocks(plan::Plan& out, const Candidate& frame, const plan::ModuleTree& tree);
// name_of() of a candidate with settings of its blocks.
[[nodiscard]] std::string name_by_block(const Candidate& frame, int64_t ranks);

}  // namespace shardlens::sim
