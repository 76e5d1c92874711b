#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <QString>
#include <QStringList>

#include "gui/model/lanes/lane_arrangement.h"
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
    // kLane, kGhostLane: index into RankData::lanes, followed by the nested ones, and into
    // Lane::rows.
    size_t lane = 0, row = 0;
    double top = 0, height = 0;
    QString label = {};
    QString name = {};    // of the lane, in LaneArrangement; "": of a header or a folded rank
    bool pinned = false;  // does not scroll
  };
  std::vector<Band> bands;
  double height = 0;  // with that of the pinned ones
  double pinned = 0;  // height of the pinned bands, which are the first

  // The band at `y` pixels below the top, `scroll` of the bands that are not pinned being scrolled
  // away.
  [[nodiscard]] const Band* at(double y, double scroll) const;
  // The band of a lane's row, not the pinned one; nullptr if its rank is collapsed or the lane is
  // hidden.
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

// Lanes of nested operators, one for each thread, by rank; those of a rank that is not here are not
// shown.
using NestedLanes = std::map<size_t, std::vector<Lane>>;

// The lanes of a run that are shown.
struct ShownLanes {
  const RunData& run;
  const std::set<size_t>& collapsed;
  const LaneArrangement& arrangement;
  const NestedLanes& nested;
  const Ghost& ghost;
};

// If the rows need less than `room` pixels, they grow to fill it, by at most a factor of
// kMostGrowth.
[[nodiscard]] TimelineLayout layout_of(const ShownLanes& shown, double room);

// "all-gather", "exposed ▨", …
[[nodiscard]] QString lane_label(const Lane& lane);
// The lane's name in a LaneArrangement.
[[nodiscard]] QString lane_name(const Lane& lane);
// The names of all lanes of the rank that can be arranged, in their first order; `nested`: with
// that of nested operators.
[[nodiscard]] QStringList lane_names(const RankData& rank, bool nested);

}  // namespace shardlens::gui
