#pragma once

#include <string>
#include <vector>

#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Work that ran as one piece, because a compiler or a CUDA graph joined it.
struct Region {
  std::string name;  // "compiled 0/1", "compiled backward", "CUDA graph"
  Interval when;     // with a device: of what was launched within, from the first to the last
};

// The regions of torch.compile and the replays of CUDA graphs, by start. A region within another is
// left out.
//
// Complexity  O(n) in the device events, times the logarithm of the regions.
[[nodiscard]] std::vector<Region> regions_of(const trace::Trace& trace, const Timeline& timeline);

}  // namespace shardlens::analysis
