#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/analysis/figures/rank_collectives.h"
#include "profiler/analysis/ranks/clock_offsets.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// One rank's part in a collective.
struct CollectivePart {
  uint32_t rank;   // position in the run
  uint32_t index;  // into RankCollectives::rows
};
using MatchedCollective = std::vector<CollectivePart>;  // by rank, at least two

// The parts of each collective, and the clocks by which they fit together.
struct CollectiveMatching {
  std::vector<MatchedCollective> collectives;
  std::vector<ClockOffset> clocks;  // by position in the run
};

// Whether all ranks end such a collective at about the same time, however uneven their messages.
[[nodiscard]] bool ends_together(CollectiveKind kind);

// Finds the parts of each collective across ranks.
//
// [Note: Matching] Parts with one Comms Id belong together, if all ranks have them. Without those,
// with sequence numbers, parts of one process group with one number do. Without them, the ranks of
// a group are aligned step by step to the rank that has most:
//   - In a step in which two ranks called equally many, of the same kinds and sizes, which would
//     not fit if one rank's were shifted by a few, they are matched in that order.
//   - Other kinds that all ranks end together are matched by time. The difference of two ranks'
//     clocks is the one on which most pairs of equal kind and size, at nearly the same place of a
//     step, agree; so events that one trace lost neither shift the rest nor look like an offset.
//   - What that rank has lost is matched among the others, by the clocks that follow.
//   - What need not end together (broadcasts, all-to-alls, sends) is matched by its order within
//     the step, where all ranks have equally many.
// Parts that cannot have been in one collective are then dropped: of different kind or size, or, by
// the clocks that all groups together give, not running at the same time.
//
// Complexity  O(n log n) in the collectives.
[[nodiscard]] CollectiveMatching match_collectives(const std::vector<RankCollectives>& ranks,
                                                   std::vector<trace::Diagnostic>& diagnostics);

}  // namespace shardlens::analysis
