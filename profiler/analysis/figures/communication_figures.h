#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/collective.h"
#include "profiler/analysis/figures/exposed_time.h"
#include "profiler/analysis/figures/group_figures.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::analysis {

// The collectives of one kind that a rank's process group runs for one purpose.
struct CommunicationFigures {
  Purpose purpose = Purpose::kOther;
  std::string group;  // as WindowGroups::Group
  int64_t ranks = 0;  // of the group; 0: not known
  std::optional<CollectiveKind> kind;
  std::optional<int64_t> count;  // that start within the window; nullopt: not known
  Bytes bytes = 0;               // of those; 0: not known
  Nanoseconds busy = 0;          // length of the union of their times
  Nanoseconds exposed = 0;
};

// All communication of the window, by purpose, then by group in the order of `groups`, then by
// kind. Exposed times sum to Partition::figures(window).exposed_comm.
[[nodiscard]] std::vector<CommunicationFigures> communication_figures(const WindowGroups& groups,
                                                                      const Timeline& timeline,
                                                                      const Partition& partition,
                                                                      const IntervalSet& window);

}  // namespace shardlens::analysis
