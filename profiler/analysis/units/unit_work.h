#pragma once

#include <map>
#include <vector>

#include "profiler/analysis/figures/exposed_time.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The compute and copy time of one owner within a window. Time in which several owners compute
// belongs to the one that started first, so that the compute of all owners sums to the rank's;
// likewise for exposed copies.
struct Work {
  Nanoseconds compute = 0, exposed_copy = 0;
};

// Consecutive kernels or operators of one owner within one section of the host's time.
struct WorkSpan {
  enum class Kind : uint8_t { kCompute, kCopyOut, kCopy };
  Kind kind = Kind::kCompute;
  Owner owner;
  Interval when;               // first start to last end
  Nanoseconds busy = 0;        // length of the union of their times
  Nanoseconds exposed = 0;     // copies: time without concurrent compute or communication
  Nanoseconds launched = 0;    // when the host launched the first of them
  Basis basis = Basis::kNone;  // of the first of them
};

struct UnitWork {  // compute and copies, by the unit they belong to
  std::map<std::pair<Section, uint32_t>, Work> by_owner;  // (section, unit)
  std::vector<WorkSpan> spans;                            // by start; all of the timeline
};

// Empty if the trace has neither FSDP ranges nor work of CUDA graphs nor a program that gathers its
// own parameters.
[[nodiscard]] UnitWork unit_work(const Timeline& timeline,
                                 const Partition& partition,
                                 const IntervalSet& window);

}  // namespace shardlens::analysis
