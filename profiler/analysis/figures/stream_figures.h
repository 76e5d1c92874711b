#pragma once

#include <string>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// One row of the timeline: a stream of the device, a thread that runs operators, or a communicator.
struct StreamFigures {
  std::string name;
  Nanoseconds busy = 0;
};

// How long each stream worked within the window, by track. Streams that the timeline has no work of
// are left out. Complexity: linear in the timeline's events; host traces are sorted.
[[nodiscard]] std::vector<StreamFigures> stream_figures(const trace::Trace& trace,
                                                        const Timeline& timeline,
                                                        const IntervalSet& window);

}  // namespace shardlens::analysis
