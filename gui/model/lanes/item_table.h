#pragma once

#include <cstdint>
#include <ranges>
#include <span>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/events/intervals.h"

namespace shardlens::gui {

// One item on a lane. `ref` is an index whose meaning depends on the lane (see Lane).
struct LaneItem {
  Nanoseconds start = 0, end = 0;
  uint32_t ref = 0;
};

// What a row's items are read from: a table that is there anyway, such as Trace::events. A row then
// needs 4 bytes for an item, its position in the table.
//
// Ownership  the table is not owned. It must outlive the rows, and neither move nor change.
class ItemTable {
 public:
  using Read = LaneItem (*)(const void* table, uint32_t position);
  ItemTable(const void* table, Read read) : table_(table), read_(read) {}
  // Rows with a member `when`; `ref` is the position.
  template <class Row>
  explicit ItemTable(const std::vector<Row>& rows)
      : ItemTable(&rows, [](const void* table, uint32_t position) -> LaneItem {
          const Row& row = (*static_cast<const std::vector<Row>*>(table))[position];
          return {row.when.start, row.when.end, position};
        }) {}
  explicit ItemTable(const analysis::IntervalSet& set)
      : ItemTable(&set, [](const void* table, uint32_t position) -> LaneItem {
          const auto& each = (*static_cast<const analysis::IntervalSet*>(table))[position];
          return {each.start, each.end, position};
        }) {}
  LaneItem operator()(uint32_t position) const { return read_(table_, position); }

 private:
  const void* table_;
  Read read_;
};

using LaneItems = std::ranges::transform_view<std::span<const uint32_t>, ItemTable>;

}  // namespace shardlens::gui
