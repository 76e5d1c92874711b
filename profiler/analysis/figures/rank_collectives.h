#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// A process group as the trace names it.
struct CollectiveGroup {
  std::string name, ranks, description;  // "": not in the trace
  friend auto operator<=>(const CollectiveGroup&, const CollectiveGroup&) = default;
};

// The data of one collective that the comparison across ranks needs.
struct RankCollective {
  Interval when;
  std::optional<Nanoseconds> issued;
  std::optional<CollectiveKind> kind;
  UnitPart part = UnitPart::kOther;
  bool emulated = false;             // it did not wait for other ranks
  uint32_t unit = kNoUnit;           // index into RankCollectives::units
  uint32_t group = 0;                // index into RankCollectives::groups
  uint32_t communicator = 0;         // equal for those that wait for each other on this rank
  uint32_t name = 0;                 // of its event: index into RankCollectives::names
  uint32_t event = trace::kNoIndex;  // index into Trace::events
  Bytes bytes = 0;
  int64_t ranks = 0;
  int64_t sequence = -1;           // number in its group; -1: not in the trace
  int64_t comms_id = 0;            // the same on all ranks; 0: not in the trace
  int64_t sent = 0, received = 0;  // elements of its messages; -1: not in the arguments
  int64_t step = -1;               // number of the step that issued it; -1: none
  // Over all participating ranks, as in Collective; set by match_ranks().
  std::optional<Nanoseconds> last_start;
  uint32_t last_rank = trace::kNoIndex, last_index = trace::kNoIndex;
  std::optional<Nanoseconds> transfer;
};

// The collectives of a rank, without its trace.
struct RankCollectives {
  int64_t rank = 0;
  std::vector<std::string> units, names;
  std::vector<CollectiveGroup> groups;
  std::vector<RankCollective> rows;  // those of Timeline::collectives
};

// Steps are those of the timeline; `rank`: its number if the trace has none.
[[nodiscard]] RankCollectives rank_collectives(const trace::Trace& trace,
                                               const Timeline& timeline,
                                               int64_t rank = 0);

// By Timeline::collectives: a number for each communicator, which is a process group. Where the
// trace does not name the group, it is the stream or the thread that runs it.
[[nodiscard]] std::vector<uint32_t> communicators(const trace::Trace& trace,
                                                  const Timeline& timeline);

}  // namespace shardlens::analysis
