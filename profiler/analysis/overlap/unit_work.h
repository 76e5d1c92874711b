#pragma once

#include <map>
#include <vector>

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// What one owner computed and copied. Instants in which several compute belong to the one that
// started first, so that all owners' compute sums to the rank's; the same holds for exposed copies.
struct Work {
  IntervalSet compute, exposed_copy;
};

// A run of kernels or operators of one owner that no other section cut.
struct WorkSpan {
  enum class Kind : uint8_t { kCompute, kCopyOut, kCopy };
  Kind kind = Kind::kCompute;
  Owner owner;
  Interval when;             // first start to last end
  Nanoseconds busy = 0;      // |∪ of them|
  Nanoseconds exposed = 0;   // copies: with neither compute nor communication beside
  Nanoseconds launched = 0;  // when the host launched the first
};

struct UnitWork {
  std::map<std::pair<Section, uint32_t>, Work> by_owner;  // (section, unit)
  std::vector<WorkSpan> spans;                            // by start
};

// Empty where the trace has no FSDP ranges.
[[nodiscard]] UnitWork unit_work(const trace::Trace& trace, const Timeline& timeline);

}  // namespace shardlens::analysis
