#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/collective.h"
#include "profiler/analysis/figures/rank_collectives.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// How far a rank's clock is off, computed from the ends of matched collectives: all ranks of a
// group end a collective within microseconds. See [Note: Graph of clocks] in clock_offsets.h.
struct ClockFigures {
  int64_t rank = 0;
  Nanoseconds offset = 0;    // how far the clock is ahead of the reference
  Nanoseconds spread = 0;    // median distance of its ends from the common ends
  Nanoseconds residual = 0;  // the largest disagreement with what one other rank's ends say
  int64_t reference = 0;     // the lowest of the ranks whose clocks are compared with this one's
  int64_t collectives = 0;   // matched on this rank
};

// How often a rank was the last to start a collective.
struct StragglerFigures {
  int64_t rank = 0;
  int64_t last = 0;         // number of collectives that it started last
  Nanoseconds held_up = 0;  // sum of its delays after the last but one
};

// Matched collectives of one kind and size in one group.
struct MatchedFigures {
  CollectiveKind kind = CollectiveKind::kAllGather;
  std::string group;
  Bytes bytes = 0;
  int64_t ranks = 0, count = 0;
  Nanoseconds transfer_median = 0;            // median of the shortest duration over the ranks
  Nanoseconds wait_median = 0;                // median of the ranks' mean of (duration - transfer)
  Nanoseconds skew_median = 0, skew_max = 0;  // median and maximum of (last start - first start)
  std::optional<double> algbw, busbw;         // GB/s, for the median transfer; see bandwidth.h
};

struct Matching {                            // the ranks of a run compared
  std::vector<ClockFigures> clocks;          // by rank; empty if nothing was matched
  std::vector<StragglerFigures> stragglers;  // by rank
  std::vector<MatchedFigures> collectives;   // longest total transfer first
  // Collectives that do not fit together, which are not matched.
  std::vector<trace::Diagnostic> diagnostics;
};

// Matches collectives across ranks (see [Note: Matching] in collective_matching.h), aligns the
// clocks by their ends, and sets last_start, last_rank, last_index and transfer of the matched
// ones.
//
// Complexity  O(n log n) in the collectives.
[[nodiscard]] Matching match_ranks(std::vector<RankCollectives>& ranks);
// The same for the collectives of timelines.
[[nodiscard]] Matching match_ranks(const std::vector<trace::Trace>& traces,
                                   std::vector<Timeline>& timelines);

// Sets last_start, last_rank, last_index and transfer of the timeline's collectives.
void copy_matches(const RankCollectives& from, Timeline& to);

}  // namespace shardlens::analysis
