#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/plan.h"

namespace shardlens::sim {

// One point of the space that a search goes through.
struct Candidate {
  int64_t blocks_per_unit = 1;  // 0: the whole model is one unit
  int64_t shard = 1;            // ranks of the mesh's shard axis
  bool reshard = true;          // after forward
  bool backward_prefetch = true;
  int64_t forward_prefetch = 0;  // depth
  bool checkpoint = false;       // every block
  int64_t batch = 1, accumulate = 1;
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// All candidates of a model on so many ranks, `samples` sequences of a rank in a step divided into
// microbatches in every way. Those with the same units and checkpoints follow each other; among
// those that are alike but for their microbatch, the largest comes last.
[[nodiscard]] std::vector<Candidate> candidates(const plan::ModuleTree& tree,
                                                int64_t ranks,
                                                int64_t samples);

// As a plan file has it, in the precision of `base`.
[[nodiscard]] plan::Plan plan_of(const Candidate& candidate,
                                 const plan::Plan& base,
                                 const plan::ModuleTree& tree,
                                 int64_t ranks);

// "2 blocks a unit, sharded over 4 of 8 ranks, kept after forward, checkpointed, 2 x 4": what a
// person reads, and what names it in a state file.
[[nodiscard]] std::string name_of(const Candidate& candidate, int64_t ranks);

}  // namespace shardlens::sim
