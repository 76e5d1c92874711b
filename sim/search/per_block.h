#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "core/plan/plan.h"
#include "sim/scenario/scenario.h"
#include "sim/search/block_plan.h"
#include "sim/search/candidates.h"
#include "sim/search/outcome.h"
#include "sim/search/search.h"

namespace shardlens::sim {

// A plan whose blocks have settings of their own.
struct PerBlockPlan {
  Candidate candidate;
  plan::Plan plan;
  Outcome outcome;
  // The step is at most this share longer than that of any plan of the space whose units all have
  // 1 or 2 blocks. Compared with lower bounds (step_bound.h), so the best plan may be this one.
  double gap = 0;
  size_t evaluated = 0;  // simulated steps
  bool cancelled = false;
};

// Number of simulated steps after which a search per block ends, by default. Their time is
// proportional to the blocks.
[[nodiscard]] constexpr size_t most_steps(size_t blocks) {
  return std::clamp<size_t>(28000 / std::max<size_t>(1, blocks), 100, 4000);
}

// Searches the plan with the shortest step that fits, in the space of plan_frames() on the axes
// `context`, `tensor` and `expert` of the scenario's plan and, for each block, whether it begins a
// unit, is kept after forward, and is checkpointed, and how many units its unit prefetches.
// SearchOptions: the memory limit, precisions and `cancelled`; one thread. The result does not
// depend on time or threads.
//
// [Note: Search per block] Branch and bound over frames. The frame with the least expected step
// comes next: its lower bound, and once that was refined, what one simulated plan lets expect.
// Frames whose bound is not less than the best step found (by more than a ten thousandth) are left
// out. It ends when no frame is left, or after half of `most` simulated steps, once something fits.
// With n equal blocks a frame has 4^n choices of what is kept and checkpointed. Where a kept
// block is costs no memory, and the last ones save the most, because backward needs them first; so
// the last k are kept. Checkpointed are the first c, whose activations exist longest, or c that are
// spread evenly, which leaves communication the most time. With more checkpoints more blocks can be
// kept, so a frame needs a walk along the border of what fits. The best few plans are then improved
// by local changes: a block checkpointed or not, kept or not, merged with the one before it or not,
// neighbours that trade places, another prefetch, or another selection of what is saved; with few
// blocks also two of these. Then units prefetch other numbers of units than the rest of the plan
// (prefetch_moves.h). `gap` states what all this may miss.
//
// `equal_blocks`: if not null, the best plan of search(), from which the search also starts.
//
// nullopt: nothing fits, or the model has no blocks.
// Errors  InputError for a plan of FSDP1, which has no settings by unit; as evaluate().
[[nodiscard]] std::optional<PerBlockPlan> search_per_block(const Scenario& scenario,
                                                           const SearchOptions& options,
                                                           const Candidate* equal_blocks = nullptr,
                                                           std::optional<size_t> most = {});

}  // namespace shardlens::sim
