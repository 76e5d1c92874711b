#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <QRectF>

#include "sim/scenario/memory_curve.h"

namespace shardlens::gui {

// A treemap of the memory that is allocated at a moment: groups of units with a tile for each
// category, or groups of categories with a tile for each unit.
//
// Layout  Groups are in the order of the model, and those of a group in the order of the other
//         groups, so that they stay where they are while their sizes change. Every tile has the
//         same area per byte, which is that of the step's peak in the whole area; what is free
//         below the peak is an empty part at the right.
// Units   pixels.
struct MemoryMap {
  enum class Order : uint8_t { kByUnit, kByCategory };
  struct Tile {
    QRectF area;
    sim::MemoryCategory category = sim::MemoryCategory::kParameters;
    std::optional<std::string> unit;  // FQN, "" is the root; nullopt: of no unit
    Bytes bytes = 0;
    bool largest = false;  // of its group
  };
  struct Group {
    QRectF area;
    Bytes bytes = 0;
    size_t begin = 0, end = 0;  // of `tiles`
  };
  QRectF used, free;  // parts of the area
  Bytes sum = 0, peak = 0;
  std::vector<Group> groups;
  std::vector<Tile> tiles;

  [[nodiscard]] const Tile* at(const QPointF& position) const;
};

// At `time`, since the step began. Requires points.
[[nodiscard]] MemoryMap memory_map(const sim::MemoryCurve& curve,
                                   Nanoseconds time,
                                   MemoryMap::Order order,
                                   const QRectF& area);

// A part of the memory that a unit holds of a category at the time: "saved by aten::mm". The
// largest comes first.
struct HeldMemory {
  std::string what;
  Bytes bytes = 0;
};
[[nodiscard]] std::vector<HeldMemory> held_memory(const sim::MemoryCurve& curve,
                                                  Nanoseconds time,
                                                  const std::optional<std::string>& unit,
                                                  sim::MemoryCategory category);

// Rectangles whose areas are proportional to the weights, which are not negative, and fill `area`:
// in strips along its shorter side, in the given order.
//
// Source  Bederson, Shneiderman, Wattenberg, "Ordered and Quantum Treemaps" (2002): strip treemaps.
[[nodiscard]] std::vector<QRectF> strip_treemap(const std::vector<double>& weights,
                                                const QRectF& area);

}  // namespace shardlens::gui
