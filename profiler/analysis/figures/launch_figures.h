#pragma once

#include <cstdint>

#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// How far the host was ahead of the device, over the device events that start within a window and
// whose launch is in the trace. A CUDA graph is one launch, of its first event.
struct LaunchFigures {
  int64_t count = 0;
  Nanoseconds latency_median = 0;  // start on the device minus start of the launching call
  Nanoseconds latency_p99 = 0, latency_max = 0;
  int64_t before_launch = 0;  // events that start before their launch: the clocks disagree
  int64_t queue_max = 0;      // largest number of events launched but not yet started
  double queue_mean = 0;      // number of such events, averaged over the window
};

// Complexity  O(n log n).
[[nodiscard]] LaunchFigures launch_figures(const trace::Trace& trace,
                                           const Timeline& timeline,
                                           const IntervalSet& window);

}  // namespace shardlens::analysis
