#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "sim/search/precision.h"

namespace shardlens::sim {

// One point of a search's space.
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
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// All divisors, sorted.
[[nodiscard]] std::vector<int64_t> divisors(int64_t of);
// The sizes into which a rank's samples per step can be divided as microbatches, sorted.
[[nodiscard]] std::vector<int64_t> batch_sizes(int64_t samples);

// All candidates without cpu_offload, in the base plan's precision, of a model on `ranks` ranks. A
// rank's `samples` sequences per step are divided into microbatches in every way. Candidates with
// the same units and checkpoints are adjacent, and candidates that differ only in their microbatch
// are sorted by its size.
[[nodiscard]] std::vector<Candidate> candidates(const plan::ModuleTree& tree,
                                                int64_t ranks,
                                                int64_t samples);

// The candidate's plan; settings that a candidate does not have, such as the layout, are those of
// `base`.
[[nodiscard]] plan::Plan plan_of(const Candidate& candidate,
                                 const plan::Plan& base,
                                 const plan::ModuleTree& tree,
                                 int64_t ranks);

// "2 blocks a unit, 2 replicas of 4 shards, kept after forward, checkpointed, 2 x 4": for
// output, and the candidate's key in a state file.
[[nodiscard]] std::string name_of(const Candidate& candidate, int64_t ranks);

}  // namespace shardlens::sim
