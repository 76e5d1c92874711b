#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/timeline/dependencies.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The reason that limits a segment of the critical path; docs/reference/metrics.md defines each.
enum class Bound : uint8_t { kCompute, kCommunication, kCopy, kHost, kLaunch, kIdle };
inline constexpr int kBoundCount = 6;
[[nodiscard]] std::string_view name_of(Bound bound);  // "compute", "communication", …

struct PathSegment {  // a part of the critical path
  Interval when;      // on the clock of the rank that the step belongs to
  Bound bound = Bound::kIdle;
  uint32_t rank = 0;                 // rank on which the time was spent: position in the run
  uint32_t event = trace::kNoIndex;  // index into that rank's Trace::events; kNoIndex: no event
};

// The sum of all segments with the same rank, bound and name.
struct PathPart {
  int64_t rank = 0;  // rank number
  Bound bound = Bound::kIdle;
  std::string name;  // name of the events; "": no event
  int64_t count = 0;
  Nanoseconds length = 0;
};

// The chain of events and waits that determines when a step ends. Each is the latest of those that
// its successor had to wait for; a collective waits for the rank that starts it last. Segments
// follow each other without a gap from the step's start to its end, so their lengths sum to the
// step.
struct CriticalPath {
  int64_t step = 0;
  std::vector<PathSegment> segments;  // by time
  std::array<Nanoseconds, kBoundCount> lengths{};

  [[nodiscard]] Bound bound() const;  // the bound with the largest length
};

// The data of one rank that PathFinder needs. Ownership: the caller's; must outlive the PathFinder.
struct PathRank {
  const trace::Trace& trace;
  const Timeline& timeline;
  const Dependencies& dependencies;
  Nanoseconds clock = 0;  // how far the clock is ahead (ClockFigures::offset)
};

struct PathLinks;  // path_walk.h

// Finds the critical paths of the steps of a run's ranks. In device traces the search goes back
// from a step's end along streams, waits for events, launches and waits of the host; in CPU traces
// the path is on the host.
//
// Threads     of() may be called from several threads.
// Complexity  O(n log n) for all steps of a rank together.
class PathFinder {
 public:
  explicit PathFinder(std::vector<PathRank> ranks);
  ~PathFinder();
  PathFinder(const PathFinder&) = delete;
  PathFinder& operator=(const PathFinder&) = delete;

  // The critical paths of the steps of `rank`, which is a position in the run.
  [[nodiscard]] std::vector<CriticalPath> of(uint32_t rank) const;
  // Longest first.
  [[nodiscard]] std::vector<PathPart> parts(const CriticalPath& path) const;

 private:
  std::vector<PathRank> ranks_;
  std::vector<PathLinks> links_;  // by rank
};

}  // namespace shardlens::analysis
