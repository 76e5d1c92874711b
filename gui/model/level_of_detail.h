#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/events/intervals.h"

namespace shardlens::gui {

// One thing on a lane. What `ref` counts is the lane's to say.
struct LaneItem {
  Nanoseconds start = 0, end = 0;
  uint32_t ref = 0;
};

// How long something ran in each bucket of time, by buckets of 2^k ns: what a zoomed-out row is
// drawn from in time that depends on the pixels alone.
//
// Memory  about 2 bytes per item.
class BusyPyramid {
 public:
  BusyPyramid() = default;
  explicit BusyPyramid(const std::vector<LaneItem>& items);  // by start, disjoint
  [[nodiscard]] bool empty() const { return levels_.empty(); }
  [[nodiscard]] Nanoseconds finest() const { return Nanoseconds{1} << shift_; }
  // Busy time within the window, from buckets no longer than `resolution` where there are such; a
  // bucket cut by the window counts in proportion.
  [[nodiscard]] double busy(const analysis::Interval& window, double resolution) const;

 private:
  Nanoseconds origin_ = 0;
  int shift_ = 0;                              // of levels_[0]
  std::vector<std::vector<uint32_t>> levels_;  // each half as long as the one before
};

// Items that do not overlap, by start.
class LaneRow {
 public:
  explicit LaneRow(std::vector<LaneItem> items);
  [[nodiscard]] const std::vector<LaneItem>& items() const { return items_; }
  [[nodiscard]] const BusyPyramid& pyramid() const { return pyramid_; }
  // Index of the first that ends after `instant`; items().size() if none does.
  [[nodiscard]] size_t first_ending_after(Nanoseconds instant) const;

 private:
  std::vector<LaneItem> items_;
  BusyPyramid pyramid_;
};

// Puts items into as few rows as hold them without overlap, so that nothing is drawn over another.
[[nodiscard]] std::vector<LaneRow> rows_of(std::vector<LaneItem> items);

// What is drawn of a row: an item of its own, or a stretch of pixels that is busy to some part.
struct Tile {
  double left = 0, right = 0;  // pixels from the left edge of the view
  double busy = 1;             // of the stretch, 0 to 1
  int64_t item = -1;           // index into LaneRow::items(); -1: several, or a part of the row
};

// Tiles of `view`, drawn `width` pixels wide, from left to right.
//
// [Note: Nothing is hidden] An item at least kWidePixels wide is a tile; narrower ones add their
// time to the pixels that they touch, so that the time that tiles stand for is the row's, at
// every zoom. Where more than kWalked items are in view, pixels come from the pyramid.
void append_tiles(const LaneRow& row,
                  const analysis::Interval& view,
                  int width,
                  std::vector<Tile>& out);

}  // namespace shardlens::gui
