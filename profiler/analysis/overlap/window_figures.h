#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/base/step_figures.h"
#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::analysis {

struct KindFigures {
  int64_t count = 0;        // that start within the window
  Bytes bytes = 0;          // the larger message of each, summed
  Nanoseconds busy = 0;     // |∪kind|
  Nanoseconds exposed = 0;  // its part of exposed_comm; the parts sum to it
  // Of those that were matched across ranks (matching.h): the shortest duration of each over the
  // ranks, and what this rank's took beyond it.
  int64_t matched = 0;
  Nanoseconds transfer = 0, wait = 0;
  // Of those whose size is known: bytes and bytes times bus_factor() over their transfer time, own
  // duration where they were not matched; GB/s.
  std::optional<double> algbw, busbw;
};

// What a window of a rank's timeline consists of; duration() is the window's length.
struct Figures : StepFigures {
  std::map<CollectiveKind, KindFigures> collectives;
  KindFigures unknown;  // communication whose kind neither arguments nor name tell
};

// The instants of a timeline, each in one set alone, so that lengths add up.
//
// [Note: Whose exposed time] Where several collectives run at an exposed instant, it belongs to the
// one that started first (of those, the one whose event comes first in the trace). So the exposed
// times of collectives are disjoint and sum to the rank's.
class Partition {
 public:
  // Exposed instants, and which of Timeline::collectives they belong to.
  struct Owned {
    Interval when;
    uint32_t collective = 0;
  };

  explicit Partition(const Timeline& timeline);

  // Complexity: logarithmic in the timeline, linear in what lies within the window.
  [[nodiscard]] Figures figures(const IntervalSet& window) const;
  // Exposed instants of Timeline::collectives[i], all or those within `window`.
  [[nodiscard]] IntervalSet exposed(size_t i) const;
  [[nodiscard]] IntervalSet exposed(size_t i, const IntervalSet& window) const;
  // The same of all collectives: disjoint, by time and so by collective.
  [[nodiscard]] const std::vector<Owned>& exposed_by_collective() const { return owned_; }
  // |∪comm ∩ ∪compute|, |∪comm \ ∪compute| and |∪copy \ (∪compute ∪ ∪comm)|, as sets.
  [[nodiscard]] const IntervalSet& overlap() const { return overlap_; }
  [[nodiscard]] const IntervalSet& exposed_comm() const { return exposed_comm_; }
  [[nodiscard]] const IntervalSet& exposed_copy() const { return exposed_copy_; }

 private:
  void own_exposed();

  const Timeline& timeline_;
  IntervalSet overlap_, exposed_comm_, exposed_copy_;
  std::vector<Owned> owned_;
  std::vector<size_t> first_owned_;  // by collective, and one behind the last: into owned_
  std::map<std::optional<CollectiveKind>, IntervalSet> kinds_;
};

}  // namespace shardlens::analysis
