#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/base/collective.h"
#include "profiler/analysis/figures/exposed_time.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::gui {

// Length of a set of intervals within any window, by prefix sums.
//
// Complexity  logarithmic per query; 8 bytes per interval.
class PrefixSums {
 public:
  PrefixSums() = default;
  explicit PrefixSums(const analysis::IntervalSet& set);  // must outlive this object
  [[nodiscard]] Nanoseconds within(const analysis::Interval& window) const;

 private:
  [[nodiscard]] Nanoseconds before(Nanoseconds instant) const;
  const analysis::IntervalSet* set_ = nullptr;
  std::vector<Nanoseconds> sums_;  // summed lengths of all intervals before each
};

// The headline of any window while it is dragged: the times of Partition::figures(), without counts
// and bytes.
class LiveFigures {
 public:
  // Both must outlive this object and must not move.
  LiveFigures(const analysis::Timeline& timeline, const analysis::Partition& partition);
  LiveFigures(const LiveFigures&) = delete;
  LiveFigures& operator=(const LiveFigures&) = delete;
  // Figures of the part of `window` that is within the rank's span; in KindFigures only `exposed`
  // is set.
  [[nodiscard]] analysis::WindowFigures within(const analysis::Interval& window) const;
  // The times of all windows together.
  [[nodiscard]] StepFigures within(const analysis::IntervalSet& windows) const;

 private:
  const analysis::Timeline& timeline_;
  PrefixSums compute_, communication_, overlap_, exposed_comm_, exposed_copy_;
  // Exposed intervals of each kind. The sets are disjoint, so their lengths sum to exposed_comm.
  std::map<std::optional<CollectiveKind>, analysis::IntervalSet> exposed_;
  std::map<std::optional<CollectiveKind>, PrefixSums> exposed_sums_;
};

}  // namespace shardlens::gui
