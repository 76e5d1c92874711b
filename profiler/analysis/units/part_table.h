#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "profiler/analysis/units/unit_figures.h"

namespace shardlens::analysis {

// One figure of a unit's collectives of a part. JSON and CSV loop over the rows, and Python has the
// keys that it reads there.
struct PartFigureRow {
  std::string_view key;  // its ending is the unit: "exposed_ns"
  // One of the two is set. nullopt: the trace does not tell, or there is none.
  std::optional<int64_t> (*number)(const PartFigures& part) = nullptr;
  std::optional<std::string_view> (*word)(const PartFigures& part) = nullptr;
};

// In the order of the columns of CSV.
[[nodiscard]] std::span<const PartFigureRow> part_figure_table();

}  // namespace shardlens::analysis
