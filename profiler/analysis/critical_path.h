#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/dependencies.h"
#include "profiler/analysis/intervals.h"
#include "profiler/analysis/timeline.h"
#include "profiler/trace/trace.h"

namespace shardlens::analysis {

// What a stretch of the critical path is spent on; docs/metrics.md says how each is told.
enum class Bound : uint8_t { kCompute, kCommunication, kCopy, kHost, kLaunch, kIdle };
inline constexpr int kBoundCount = 6;
[[nodiscard]] std::string_view name_of(Bound bound);  // "compute", "communication", …

struct PathSegment {
  Interval when;
  Bound bound = Bound::kIdle;
  uint32_t event = trace::kNoIndex;  // index into Trace::events; kNoIndex: none stands for it
};

// Segments of one bound and name, summed.
struct PathPart {
  Bound bound = Bound::kIdle;
  std::string name;  // of the events; "" where none stands for it
  int64_t count = 0;
  Nanoseconds length = 0;
};

// The chain of events and waits that a step's end hangs on, each the latest of those that the next
// one had to wait for. Segments follow each other without a gap from the step's start to its end,
// so their lengths sum to the step.
struct CriticalPath {
  int64_t step = 0;
  std::vector<PathSegment> segments;  // by time
  std::array<Nanoseconds, kBoundCount> lengths{};

  [[nodiscard]] Bound bound() const;                                           // the longest
  [[nodiscard]] std::vector<PathPart> parts(const trace::Trace& trace) const;  // longest first
};

// Complexity  O(n log n) for all steps together. Device traces walk back from the step's end along
// streams, waits for events, launches and the host's own waits; in CPU traces the host is the path.
[[nodiscard]] std::vector<CriticalPath> critical_paths(const trace::Trace& trace,
                                                       const Timeline& timeline,
                                                       const Dependencies& dependencies);

}  // namespace shardlens::analysis
