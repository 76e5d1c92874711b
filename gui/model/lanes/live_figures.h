#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/base/collective.h"
#include "gui/model/lanes/item_table.h"
#include "profiler/analysis/figures/exposed_time.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::gui {

// Length of a set of intervals within any window, by prefix sums.
//
// Complexity  logarithmic per query.
// Memory      half a byte per interval; of a part of a set 4 more.
class PrefixSums {
 public:
  PrefixSums() = default;
  explicit PrefixSums(const analysis::IntervalSet& set);  // must outlive this object
  // The rows of the table at these positions, which are sorted and do not overlap.
  PrefixSums(const ItemTable& table, std::vector<uint32_t> positions);
  [[nodiscard]] Nanoseconds within(const analysis::Interval& window) const;

 private:
  [[nodiscard]] Nanoseconds before(Nanoseconds instant) const;
  [[nodiscard]] LaneItem at(size_t i) const {
    return (*table_)(positions_.empty() ? static_cast<uint32_t>(i) : positions_[i]);
  }
  void sum();

  static constexpr size_t kStride = 16;  // intervals: so many are added up at most
  std::optional<ItemTable> table_;       // nullopt: no intervals
  std::vector<uint32_t> positions_;      // empty: all of the table
  size_t size_ = 0;
  std::vector<Nanoseconds> sums_;  // summed lengths of all intervals before each kStride-th
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
  std::map<std::optional<CollectiveKind>, PrefixSums> exposed_sums_;
};

}  // namespace shardlens::gui
