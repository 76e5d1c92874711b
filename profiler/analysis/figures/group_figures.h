#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "profiler/analysis/figures/exposed_time.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The process group of a collective as people named it: its description ("mesh_tp"), else "group
// 3";
// "": the trace does not name the group.
[[nodiscard]] std::string group_label(const trace::Trace& trace, const Collective& c);

// The name of a collective that belongs to no unit's part: "all_to_all (mesh_ep)", else its event's
// name. One of another parallelism in a unit is never called as the unit's own: without a group it
// is "other reduce_scatter".
[[nodiscard]] std::string collective_label(const trace::Trace& trace, const Collective& c);

// The process groups of the collectives that start or are exposed within a window.
struct WindowGroups {
  struct Group {
    std::string name;  // as group_label(); several groups of one description also have their number
    std::string ranks;  // as in the trace: "[0, 1]"; "": not in the trace
    int64_t size = 0;   // number of ranks; 0: not in the trace
  };
  std::vector<Group> groups;
  std::vector<uint32_t> of;  // by Timeline::collectives: index into `groups`; kNoIndex: not within
};
[[nodiscard]] WindowGroups window_groups(const trace::Trace& trace,
                                         const Timeline& timeline,
                                         const Partition& partition,
                                         const IntervalSet& window);

// The communication of one process group of a rank.
struct GroupFigures {
  std::string name;   // as WindowGroups::Group
  std::string ranks;  // as in the trace: "[0, 1]"; "": not in the trace
  int64_t size = 0;   // number of ranks; 0: not in the trace
  int64_t count = 0;  // collectives that start within the window
  Bytes bytes = 0;
  Nanoseconds busy = 0, exposed = 0;
  Nanoseconds under_compute = 0;  // |∪group ∩ ∪compute|
  // By position in the result of group_figures(): |∪group ∩ ∪other|; its own entry is `busy`. Only
  // between the first kCompared groups, empty for the others.
  std::vector<Nanoseconds> under;
  static constexpr size_t kCompared = 32;
};

// One per process group of the window, the busiest first. Collectives of no named group are one
// entry, "".
//
// Complexity  O(n log n) in the collectives, as only kCompared groups are compared.
[[nodiscard]] std::vector<GroupFigures> group_figures(const WindowGroups& window_groups,
                                                      const Timeline& timeline,
                                                      const Partition& partition,
                                                      const IntervalSet& window);

}  // namespace shardlens::analysis
