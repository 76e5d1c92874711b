#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/events/intervals.h"

namespace shardlens::analysis {

// When a rank took part in one collective that all of its ranks leave at about the same time, on
// the rank's own clock.
struct SeenPart {
  uint32_t rank;  // position in the run
  Interval when;
};
using SeenCollective = std::vector<SeenPart>;

struct ClockOffset {  // of one rank
  // How far the rank's clock is ahead of the reference: the middle rank (the lower of two) of those
  // that collectives connect.
  Nanoseconds offset = 0;
  Nanoseconds spread = 0;    // median distance of the rank's ends from the common ends
  Nanoseconds residual = 0;  // the largest disagreement with another rank it has collectives with
  uint32_t island = 0;  // ranks with different islands share no collective, not even over others
};

// Solves the clocks of all ranks from the ends that they saw.
//
// [Note: Graph of clocks] Two ranks that take part in the same collectives measure the difference
// of their clocks: the median of the differences of their ends. On a CPU, a thread that waits for a
// core may see an end milliseconds late; so only those count by which most of the collectives ran
// on both ranks at one time. Process groups that share ranks connect these measurements to a graph,
// whose solution by least squares is the offsets. A measurement counts more the more collectives it
// has and the less they scatter. One that contradicts the others loses its weight (Cauchy), so that
// a wrong match does not pull the solution.
//
// Complexity  linear in the ends, but quadratic in the ranks of a collective of up to kAllPairs.
[[nodiscard]] std::vector<ClockOffset> solve_clocks(size_t ranks,
                                                    const std::vector<SeenCollective>& collectives);

}  // namespace shardlens::analysis
