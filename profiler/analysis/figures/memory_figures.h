#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

struct MemoryPoint {  // a device's memory at a time
  Nanoseconds time = 0;
  Bytes allocated = 0, reserved = 0;
};

// A device's memory: what PyTorch's profile_memory recorded of the caching allocator; or, with
// `from_driver`, by how much what the driver gave out grew since recording began. Then `allocated`
// and `reserved` are both that growth.
struct MemoryFigures {
  std::string device;  // "cuda:0", "cpu"
  bool from_driver = false;
  int64_t events = 0;
  MemoryPoint peak;  // the first instant with the largest `allocated`
  Bytes peak_reserved = 0;
  struct StepPeak {
    int64_t step = 0;
    Bytes allocated = 0;
    Bytes before = 0;  // allocated when the step began; not in summaries
  };
  std::vector<StepPeak> steps;        // events whose host time is within the ProfilerStep
  std::vector<MemoryPoint> timeline;  // at most kPoints, each the maximum of a group of events
  static constexpr size_t kPoints = 512;
};

// One per device, in order of first appearance; empty without [memory] events.
[[nodiscard]] std::vector<MemoryFigures> memory_figures(const trace::Trace& trace,
                                                        const Timeline& timeline);

}  // namespace shardlens::analysis
