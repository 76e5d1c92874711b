#pragma once

#include <cstdint>
#include <vector>

#include "gui/model/run/run_data.h"

namespace shardlens::gui {

struct ExposedCollective {
  uint32_t collective = 0;  // index into Timeline::collectives
  Nanoseconds exposed = 0;
};

// The collectives with exposed time in `window` (the rank's own time), the most exposed first. The
// times sum to the exposed time of the window.
//
// Complexity  O(n log n) in the rank's exposed intervals.
[[nodiscard]] std::vector<ExposedCollective> exposed_within(const RankData& rank,
                                                            const analysis::IntervalSet& window);

}  // namespace shardlens::gui
