#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include <QString>

#include "gui/model/run_data.h"

namespace shardlens::gui {

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
// `ghost`: a simulated run whose only rank is drawn below `ghost_rank`; may be null.
[[nodiscard]] TimelineLayout layout_of(const RunData& run,
                                       const std::set<size_t>& collapsed,
                                       const RunData* ghost,
                                       size_t ghost_rank,
                                       double room);

// "all-gather", "exposed ▨", …
[[nodiscard]] QString lane_label(const Lane& lane);

}  // namespace shardlens::gui
