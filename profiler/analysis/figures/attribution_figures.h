#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::analysis {

// Device events of one kind whose owners were found in the same way.
struct AttributionFigures {
  Nature nature = Nature::kCompute;
  Basis basis = Basis::kNone;
  int64_t count = 0;
  Nanoseconds time = 0;  // sum of their durations
  // Shares of all events of this nature.
  double count_share = 0, time_share = 0;
};
[[nodiscard]] std::string_view name_of(Nature nature);  // "compute", "communication", "copy"

// How the owners of the events that start within `window` were found, by nature and basis. Empty if
// the timeline has neither captured work nor collectives with which a program gathers its own
// parameters: then ranges show all owners.
[[nodiscard]] std::vector<AttributionFigures> attribution_figures(const Timeline& timeline,
                                                                  const IntervalSet& window);

}  // namespace shardlens::analysis
