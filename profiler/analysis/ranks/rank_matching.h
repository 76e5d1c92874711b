#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/collective.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// How far a rank's clock is off, from the ends of matched collectives: all ranks of a group end
// within microseconds. The middle rank (the lower of two) is the reference.
struct ClockFigures {
  int64_t rank = 0;
  Nanoseconds offset = 0;   // the clock shows this much too much; median over the collectives
  Nanoseconds spread = 0;   // median distance from it
  int64_t collectives = 0;  // matched on this rank
};

// A rank that came last to collectives.
struct StragglerFigures {
  int64_t rank = 0;
  int64_t last = 0;         // collectives it came last to
  Nanoseconds held_up = 0;  // by how much after the last but one, summed
};

// Matched collectives of one kind and size in one group.
struct MatchedFigures {
  CollectiveKind kind = CollectiveKind::kAllGather;
  std::string group;
  Bytes bytes = 0;
  int64_t ranks = 0, count = 0;
  Nanoseconds transfer_median = 0;            // over the collectives, of the shortest duration
  Nanoseconds wait_median = 0;                // of the mean over ranks of duration less transfer
  Nanoseconds skew_median = 0, skew_max = 0;  // of last start less first start
  std::optional<double> algbw, busbw;         // GB/s, of the median transfer; see bandwidth.h
};

struct Matching {
  std::vector<ClockFigures> clocks;          // by rank; empty where nothing matched
  std::vector<StragglerFigures> stragglers;  // by rank
  std::vector<MatchedFigures> collectives;   // the longest total transfer first
};

// Matches the n-th collective of each process group across ranks (by sequence number where the
// trace has it), aligns the clocks by their ends, and sets Collective::last_start,
// last_rank, last_index and transfer in the timelines. What does not fit is a diagnostic, and is
// not matched.
//
// Complexity  O(n log n) in the collectives.
[[nodiscard]] Matching match_ranks(const std::vector<trace::Trace>& traces,
                                   std::vector<Timeline>& timelines,
                                   std::vector<trace::Diagnostic>& diagnostics);

}  // namespace shardlens::analysis
