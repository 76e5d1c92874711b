#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/base/collective.h"
#include "profiler/analysis/overlap/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::gui {

// Lengths within any window of a set of instants, by prefix sums.
//
// Complexity  logarithmic per query; 8 bytes per interval.
class PrefixSums {
 public:
  PrefixSums() = default;
  explicit PrefixSums(const analysis::IntervalSet& set);  // which must outlive it
  [[nodiscard]] Nanoseconds within(const analysis::Interval& window) const;

 private:
  [[nodiscard]] Nanoseconds before(Nanoseconds instant) const;
  const analysis::IntervalSet* set_ = nullptr;
  std::vector<Nanoseconds> sums_;  // of all intervals before each
};

// The headline of any window while it is dragged: what Partition::figures() says of it, without
// counts and bytes.
class LiveFigures {
 public:
  // Both must outlive it and stay where they are.
  LiveFigures(const analysis::Timeline& timeline, const analysis::Partition& partition);
  LiveFigures(const LiveFigures&) = delete;
  LiveFigures& operator=(const LiveFigures&) = delete;
  // Of `window` within the rank's span; KindFigures have `exposed` alone.
  [[nodiscard]] analysis::Figures within(const analysis::Interval& window) const;

 private:
  const analysis::Timeline& timeline_;
  PrefixSums compute_, communication_, overlap_, exposed_comm_, exposed_copy_;
  // Exposed instants of each kind: of disjoint sets, so that they sum to exposed_comm.
  std::map<std::optional<CollectiveKind>, analysis::IntervalSet> exposed_;
  std::map<std::optional<CollectiveKind>, PrefixSums> exposed_sums_;
};

}  // namespace shardlens::gui
