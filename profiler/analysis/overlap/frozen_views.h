#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/analysis/overlap/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Reductions that ran late because the views of the parameters were made once, up front.
//
// [Note: Frozen views] With views made in each forward, a unit's gradients are reduced while the
// units before it are still in backward. Views made once are older than every operator of the
// forward, and autograd runs newer nodes first: all reductions come when the whole backward is
// through. So a backward is accused if each of its reductions of a unit u was issued after the
// backward of every unit v began whose forward had ended before that of u began: u's gradients were
// complete then. At least one such pair is needed. A unit around others (the root, a tied
// embedding with the head) is no such u, and what FSDP2 reduces in its final callback is not
// counted: both are late by nature.
struct FrozenViews {
  int64_t backwards = 0;           // accused; of those with a pair
  std::vector<std::string> late;   // FQNs, in the order in which their reductions were issued
  std::vector<std::string> found;  // of one backward: "backward (layers.3)", "reduce_scatter (…)"
  std::vector<std::string> fresh;  // the same events in the order that fresh views give
  Nanoseconds lost = 0;            // docs/metrics.md
  std::vector<bool> is_late;       // by Timeline::collectives
};

// nullopt: none seen, or the trace does not say (no FSDP ranges with units around forward and
// backward). Complexity: per backward, the square of the number of units.
[[nodiscard]] std::optional<FrozenViews> find_frozen_views(const trace::Trace& trace,
                                                           const Timeline& timeline,
                                                           const Partition& partition,
                                                           const IntervalSet& window);

}  // namespace shardlens::analysis
