#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include <QString>

#include "gui/model/run/run_data.h"

namespace shardlens::gui {

// One rank of another run (simulated, or run B of a comparison), drawn below a rank of the open
// run.
struct Ghost {
  RunPointer run;         // nullptr: none
  size_t own_rank = 0;    // index into its RunData::ranks
  size_t rank = 0;        // index of the open run's rank that it is drawn below
  Nanoseconds start = 0;  // the ghost's display time 0, in the open run's display time
  QString title;          // "simulated"
  QString note;           // "one step of the edited plan, 3.2 ms"
  [[nodiscard]] const RankData& data() const { return *run->ranks[own_rank]; }
};

// The rows of the timeline, from top to bottom.
//
// Units  pixels from the top of the first rank, without scrolling.
struct TimelineLayout {
  struct Band {
    enum class Kind : uint8_t { kRank, kSummary, kLane, kQueue, kMemory, kGhostHeader, kGhostLane };
    Kind kind = Kind::kLane;
    size_t rank = 0;
    size_t lane = 0, row = 0;  // kLane, kGhostLane: indices into RankData::lanes and Lane::rows
    double top = 0, height = 0;
    QString label;
  };
  std::vector<Band> bands;
  double height = 0;

  [[nodiscard]] const Band* at(double y) const;
  // The band of a lane's row; nullptr if its rank is collapsed.
  [[nodiscard]] const Band* find(size_t rank, size_t lane, size_t row) const;
  // Top and bottom of some rows that follow each other.
  struct Extent {
    double top = 0, bottom = 0;
  };
  // Of the rank's header and lanes, without another run's below them.
  [[nodiscard]] Extent extentOf(size_t rank) const;
  // Of the other run's header and lanes; nullopt: there is none.
  [[nodiscard]] std::optional<Extent> extentOfGhost() const;
};

// If the rows need less than `room` pixels, they grow to fill it, by at most a factor of
// kMostGrowth.
[[nodiscard]] TimelineLayout layout_of(const RunData& run,
                                       const std::set<size_t>& collapsed,
                                       const Ghost& ghost,
                                       double room);

// "all-gather", "exposed ▨", …
[[nodiscard]] QString lane_label(const Lane& lane);

}  // namespace shardlens::gui
