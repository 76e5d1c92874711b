#pragma once

#include <cstdint>
#include <vector>

#include "gui/model/lanes/level_of_detail.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::gui {

// The operators and ranges of a thread of the host, by how many others contain them.
struct NestedThread {
  uint32_t track = 0;           // index into Trace::tracks
  std::vector<LaneRow> depths;  // from the outermost on; LaneItem::ref is an index into
                                // Trace::events
};

// Of all threads that have any, in the order in which they began: the program's own thread is
// before that of backward, which it starts. An event that ends after the one around it contains
// those that begin in it until its own end, so that no two of a depth overlap.
//
// Complexity  a pass over all events, and a sort of the operators.
[[nodiscard]] std::vector<NestedThread> nested_operators(const trace::Trace& trace);

}  // namespace shardlens::gui
