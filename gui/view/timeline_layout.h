#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include <QString>

#include "gui/model/run_data.h"

namespace shardlens::gui {

// One rank of another run (simulated, or compared with), drawn under a rank of the run that is
// open.
struct Ghost {
  RunPointer run;         // nullptr: none
  size_t own_rank = 0;    // index into its RunData::ranks
  size_t rank = 0;        // of the open run, which it is drawn below
  Nanoseconds start = 0;  // display time of the open run at which its own display time is 0
  QString title;          // "simulated"
  QString note;           // "one step of the edited plan, 3.2 ms"
  [[nodiscard]] const RankData& data() const { return *run->ranks[own_rank]; }
};

// Which rows the timeline has, from top to bottom.
//
// Units  pixels from the top of the first rank, not scrolled.
struct TimelineLayout {
  struct Band {
    enum class Kind : uint8_t { kRank, kSummary, kLane, kMemory, kGhostHeader, kGhostLane };
    Kind kind = Kind::kLane;
    size_t rank = 0;
    size_t lane = 0, row = 0;  // kLane: into RankData::lanes and Lane::rows
    double top = 0, height = 0;
    QString label;
  };
  std::vector<Band> bands;
  double height = 0;

  [[nodiscard]] const Band* at(double y) const;
  // Of the row that holds a lane's item; nullptr where its rank is collapsed.
  [[nodiscard]] const Band* find(size_t rank, size_t lane, size_t row) const;
};

// Lanes grow, up to kMostGrowth, where they leave some of `room` pixels empty.
[[nodiscard]] TimelineLayout layout_of(const RunData& run,
                                       const std::set<size_t>& collapsed,
                                       const Ghost& ghost,
                                       double room);

// "all-gather", "exposed ▨", …
[[nodiscard]] QString lane_label(const Lane& lane);

}  // namespace shardlens::gui
