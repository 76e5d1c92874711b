#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "core/base/units.h"
#include "gui/model/lanes/item_table.h"
#include "profiler/analysis/events/intervals.h"

namespace shardlens::gui {

// Busy time per bucket, at several levels with buckets of 2^k ns. A zoomed-out row is drawn from it
// in time that depends only on the number of pixels.
//
// Memory  about 2 bytes per item.
class BusyPyramid {
 public:
  BusyPyramid() = default;
  explicit BusyPyramid(const LaneItems& items);  // sorted by start, disjoint
  [[nodiscard]] bool empty() const { return levels_.empty(); }
  [[nodiscard]] Nanoseconds finest() const { return Nanoseconds{1} << shift_; }
  // Busy time within the window in ns, from the coarsest level whose buckets are no longer than
  // `resolution`, else from the finest level. A bucket that the window cuts counts in proportion.
  [[nodiscard]] double busy(const analysis::Interval& window, double resolution) const;

 private:
  Nanoseconds origin_ = 0;
  int shift_ = 0;                              // of levels_[0]
  std::vector<std::vector<uint32_t>> levels_;  // each half as long as the previous one
};

// Items that do not overlap, sorted by start.
class LaneRow {
 public:
  LaneRow(ItemTable table, std::vector<uint32_t> positions);
  // Each is read when it is asked for.
  [[nodiscard]] LaneItems items() const { return {positions_, table_}; }
  [[nodiscard]] const ItemTable& table() const { return table_; }
  [[nodiscard]] std::span<const uint32_t> positions() const { return positions_; }  // of the items
  [[nodiscard]] const BusyPyramid& pyramid() const { return pyramid_; }
  // Index of the first item that ends after `instant`; items().size() if there is none.
  [[nodiscard]] size_t first_ending_after(Nanoseconds instant) const;

 private:
  ItemTable table_;
  std::vector<uint32_t> positions_;
  BusyPyramid pyramid_;
};

// Distributes items of a table over rows so that items of a row do not overlap: none is drawn over
// another.
[[nodiscard]] std::vector<LaneRow> rows_of(const ItemTable& table, std::vector<uint32_t> positions);
// The same for all rows of a table with a member `when`.
template <class Row>
[[nodiscard]] std::vector<LaneRow> rows_of(const std::vector<Row>& table) {
  std::vector<uint32_t> all(table.size());
  std::iota(all.begin(), all.end(), 0U);
  return rows_of(ItemTable(table), std::move(all));
}

// A piece of a drawn row: one item, or a stretch of pixels with its busy fraction.
struct Tile {
  double left = 0, right = 0;  // pixels from the left edge of the view
  double busy = 1;             // busy fraction of the stretch, 0 to 1
  int64_t item = -1;           // index into LaneRow::items(); -1: not a single item
};

// Appends the tiles of `view`, drawn `width` pixels wide, from left to right.
//
// [Note: Nothing is hidden] An item at least kWidePixels wide becomes a tile of its own. Narrower
// items add their time to the pixels that they touch, so that at every zoom the tiles represent the
// row's total busy time. If more than kWalked items are in view, the pixels' busy times are read
// from the pyramid.
void append_tiles(const LaneRow& row,
                  const analysis::Interval& view,
                  int width,
                  std::vector<Tile>& out);

}  // namespace shardlens::gui
