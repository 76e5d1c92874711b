#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/analysis/critical_path/critical_path.h"

// How a critical path is followed back; used by critical_path.cpp alone.
namespace shardlens::analysis {

// The path as far as it is known: from at(), on some rank, to the step's end.
//
// [Note: Clocks of a path] Instants are on the clock of the rank whose step it is; shift() takes
// another rank's there.
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
  // From the present rank's clock to that of the path.
  [[nodiscard]] Nanoseconds shift() const { return ranks_[home_].clock - ranks_[rank_].clock; }

  // The path from `from` to at() is `bound`, by `event` of the present rank.
  void spend(Bound bound, Nanoseconds from, uint32_t event = trace::kNoIndex);
  // If another rank came last to collective `c` of the present one, within its time up to at(): the
  // transfer is on the path, and the path goes on there, at that rank's part, whose index is
  // returned. `since`: where this rank began to wait for it.
  std::optional<uint32_t> cross(const Collective& c, Nanoseconds since);

 private:
  const std::vector<PathRank>& ranks_;
  uint32_t home_, rank_;
  Nanoseconds start_, at_;
  CriticalPath& out_;
};

// What leads from one event of a rank to another.
struct PathLinks {
  // Device traces: by position in Timeline::device_events, its index in Timeline::collectives; and
  // the other way round. kNoIndex: none.
  std::vector<uint32_t> collective_of, device_of;

  // A stretch of a host's time, in CPU traces; what is in none is the host's own.
  struct Piece {
    Interval when;
    Bound bound = Bound::kCompute;
    uint32_t collective = trace::kNoIndex;  // of communication that compute does not cover
  };
  std::vector<Piece> pieces;      // disjoint, by start
  std::vector<uint32_t> earlier;  // by collective: the one before it on its communicator
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
