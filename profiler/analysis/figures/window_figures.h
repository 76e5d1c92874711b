#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/base/step_figures.h"
#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::analysis {

struct KindFigures {        // collectives of one kind
  int64_t count = 0;        // collectives that start within the window
  Bytes bytes = 0;          // sum of the larger message of each collective
  Nanoseconds busy = 0;     // |∪kind|
  Nanoseconds exposed = 0;  // its part of exposed_comm; the parts of all kinds sum to exposed_comm
  // For the collectives that were matched across ranks (collective_matching.h): their number; the
  // sum of the shortest duration of each over the ranks; the sum of this rank's durations beyond
  // that.
  int64_t matched = 0;
  Nanoseconds transfer = 0, wait = 0;
  // For the collectives of known size: bytes, and bytes times bus_factor(), divided by their
  // transfer time (own duration if not matched); GB/s.
  std::optional<double> algbw, busbw;
};

// How the time of a window of a rank's timeline was spent; duration() is the window's length.
struct WindowFigures : StepFigures {
  std::map<CollectiveKind, KindFigures> collectives;
  KindFigures unknown;  // communication whose kind is in neither arguments nor name
};

// Sets what depends on how long the matched collectives took on other ranks: matched, transfer,
// wait and bandwidths of each kind. `Row` is Collective or RankCollective; by start.
template <typename Row>
void set_transfers(const std::vector<Row>& collectives,
                   const IntervalSet& window,
                   WindowFigures& figures);

}  // namespace shardlens::analysis
