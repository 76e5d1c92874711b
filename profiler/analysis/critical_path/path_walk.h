#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/analysis/critical_path/critical_path.h"

// Follows a critical path backwards. Used only by critical_path.cpp.
namespace shardlens::analysis {

// The part of the path found so far: from at(), on some rank, to the step's end.
//
// [Note: Clocks of a path] Times are on the clock of the rank that the step belongs to; shift()
// converts another rank's times to that clock.
class PathSpent {
 public:
  PathSpent(const std::vector<PathRank>& ranks,
            uint32_t home,
            const Interval& window,
            CriticalPath& out)
      : ranks_(ranks), home_(home), rank_(home), start_(window.start), at_(window.end), out_(out) {}

  [[nodiscard]] Nanoseconds at() const { return at_; }
  [[nodiscard]] uint32_t rank() const { return rank_; }
  [[nodiscard]] bool done() const { return at_ <= start_; }
  [[nodiscard]] Nanoseconds start() const { return start_; }
  // The difference from the current rank's clock to the clock of the path.
  [[nodiscard]] Nanoseconds shift() const { return ranks_[home_].clock - ranks_[rank_].clock; }

  // Adds to the path: from `from` to at() it was limited by `bound`, with `event` of the current
  // rank.
  void spend(Bound bound, Nanoseconds from, uint32_t event = trace::kNoIndex);
  // If another rank was the last to start collective `c` of the current rank, after `since` and
  // before at(): adds the transfer to the path, continues on that rank, and returns the index of
  // its part of the collective. `since`: when the current rank began to wait for the collective.
  std::optional<uint32_t> cross(const Collective& c, Nanoseconds since);

 private:
  const std::vector<PathRank>& ranks_;
  uint32_t home_, rank_;
  Nanoseconds start_, at_;
  CriticalPath& out_;
};

// Links between the events of a rank.
struct PathLinks {
  // Device traces: from a position in Timeline::device_events to an index in Timeline::collectives,
  // and back. kNoIndex: none.
  std::vector<uint32_t> collective_of, device_of;
  // Device traces, by position in Timeline::device_events: the event of the same CUDA graph, in
  // another stream, that it waited for. See [Note: Inside a graph].
  std::vector<uint32_t> graph_source;

  // A section of the host's time, in CPU traces; time in no section is Bound::kHost.
  struct Piece {
    Interval when;
    Bound bound = Bound::kCompute;
    uint32_t collective = trace::kNoIndex;  // for exposed communication
  };
  std::vector<Piece> pieces;      // disjoint, by start
  std::vector<uint32_t> earlier;  // by collective: the previous collective of its communicator
};

[[nodiscard]] PathLinks device_links(const PathRank& rank);
[[nodiscard]] PathLinks host_links(const PathRank& rank);
void walk_device(const std::vector<PathRank>& ranks,
                 const std::vector<PathLinks>& links,
                 PathSpent& path);
void walk_host(const std::vector<PathRank>& ranks,
               const std::vector<PathLinks>& links,
               PathSpent& path);

}  // namespace shardlens::analysis
