#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::analysis {

// Splits the time of a timeline into disjoint sets, so that their lengths add up.
//
// [Note: Whose exposed time] If several collectives run at an exposed instant, it belongs to the
// one that started first (if equal, to the one whose event comes first in the trace). So the
// exposed times of collectives are disjoint and sum to the rank's exposed time.
class Partition {
 public:
  // An exposed interval and the index of its collective in Timeline::collectives.
  struct Owned {
    Interval when;
    uint32_t collective = 0;
  };

  explicit Partition(const Timeline& timeline);

  // Complexity: logarithmic in the timeline, linear in the events within the window.
  [[nodiscard]] WindowFigures figures(const IntervalSet& window) const;
  // Exposed times of Timeline::collectives[i], all or only those within `window`.
  [[nodiscard]] IntervalSet exposed(size_t i) const;
  [[nodiscard]] IntervalSet exposed(size_t i, const IntervalSet& window) const;
  [[nodiscard]] Nanoseconds exposed_length(size_t i, const IntervalSet& window) const;
  // The exposed times of all collectives: disjoint, sorted by time and therefore also by
  // collective.
  [[nodiscard]] const std::vector<Owned>& exposed_by_collective() const { return owned_; }
  // ∪comm ∩ ∪compute, ∪comm \ ∪compute and ∪copy \ (∪compute ∪ ∪comm).
  [[nodiscard]] const IntervalSet& overlap() const { return overlap_; }
  [[nodiscard]] const IntervalSet& exposed_comm() const { return exposed_comm_; }
  [[nodiscard]] const IntervalSet& exposed_copy() const { return exposed_copy_; }
  // window \ (∪compute ∪ ∪comm ∪ ∪copy); its length is figures(window).idle.
  [[nodiscard]] IntervalSet idle(const IntervalSet& window) const;

 private:
  void own_exposed();

  const Timeline& timeline_;
  IntervalSet overlap_, exposed_comm_, exposed_copy_;
  std::vector<Owned> owned_;
  std::vector<size_t> first_owned_;  // index into owned_ by collective, and one past the last
  std::map<std::optional<CollectiveKind>, IntervalSet> kinds_;
};

}  // namespace shardlens::analysis
