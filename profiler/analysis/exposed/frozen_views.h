#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/analysis/figures/exposed_time.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Detects gradient reductions that ran late because the views of the parameters were made only
// once, before training.
//
// [Note: Frozen views] If the views are made in each forward, a unit's gradients are reduced while
// the units before it are still in backward. If the views are made once, their autograd nodes are
// older than those of every operator of the forward. Autograd runs newer nodes first, so all
// reductions are issued after the whole backward. A backward is reported if each of its reductions
// is late: the reduction of a unit u was issued after the backward of every unit v began whose
// forward had ended before the forward of u began, although u's gradients were complete by then. At
// least one such pair (u, v) is required. A unit that contains others (the root, a tied embedding
// with the head) is no such u, and reductions in FSDP2's final callback are not counted, because
// both are always late.
struct FrozenViews {
  int64_t backwards = 0;          // number of reported backwards
  std::vector<std::string> late;  // FQNs, in the order in which their reductions were issued
  // Events of one backward: "backward (layers.3)", "reduce_scatter (…)".
  std::vector<std::string> found;
  std::vector<std::string> fresh;  // the same events in the order with fresh views
  Nanoseconds lost = 0;            // defined in docs/reference/metrics.md
  std::vector<bool> is_late;       // by Timeline::collectives
};

// nullopt: none found, or the trace has too little information (no FSDP ranges with units around
// forward and backward). Complexity: per backward, quadratic in the number of units.
[[nodiscard]] std::optional<FrozenViews> find_frozen_views(const trace::Trace& trace,
                                                           const Timeline& timeline,
                                                           const Partition& partition,
                                                           const IntervalSet& window);

}  // namespace shardlens::analysis
