#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/critical_path/dependencies.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// What a stretch of the critical path is spent on; docs/metrics.md says how each is told.
enum class Bound : uint8_t { kCompute, kCommunication, kCopy, kHost, kLaunch, kIdle };
inline constexpr int kBoundCount = 6;
[[nodiscard]] std::string_view name_of(Bound bound);  // "compute", "communication", …

struct PathSegment {
  Interval when;  // on the clock of the rank whose step it is
  Bound bound = Bound::kIdle;
  uint32_t rank = 0;                 // where it was spent: position in the run
  uint32_t event = trace::kNoIndex;  // index into its Trace::events; kNoIndex: none stands for it
};

// Segments of one rank, bound and name, summed.
struct PathPart {
  int64_t rank = 0;  // its number
  Bound bound = Bound::kIdle;
  std::string name;  // of the events; "" where none stands for it
  int64_t count = 0;
  Nanoseconds length = 0;
};

// The chain of events and waits that a step's end hangs on, each the latest of those that the next
// one had to wait for; a collective waits for the rank that comes to it last. Segments follow each
// other without a gap from the step's start to its end, so their lengths sum to the step.
struct CriticalPath {
  int64_t step = 0;
  std::vector<PathSegment> segments;  // by time
  std::array<Nanoseconds, kBoundCount> lengths{};

  [[nodiscard]] Bound bound() const;  // the longest
};

// What the walks of one rank need. Ownership: the caller's, for as long as the walks.
struct PathRank {
  const trace::Trace& trace;
  const Timeline& timeline;
  const Dependencies& dependencies;
  Nanoseconds clock = 0;  // shows this much too much (ClockFigures::offset)
};

struct PathLinks;  // path_walk.h

// The critical paths of the steps of a run's ranks. Device traces walk back from a step's end along
// streams, waits for events, launches and the host's own waits; in CPU traces the host is the path.
//
// Threads     of() may be called from several.
// Complexity  O(n log n) for all steps of a rank together.
class PathFinder {
 public:
  explicit PathFinder(std::vector<PathRank> ranks);
  ~PathFinder();
  PathFinder(const PathFinder&) = delete;
  PathFinder& operator=(const PathFinder&) = delete;

  // Of the steps of `rank`, a position in the run.
  [[nodiscard]] std::vector<CriticalPath> of(uint32_t rank) const;
  // Longest first.
  [[nodiscard]] std::vector<PathPart> parts(const CriticalPath& path) const;

 private:
  std::vector<PathRank> ranks_;
  std::vector<PathLinks> links_;  // by rank
};

}  // namespace shardlens::analysis
