#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "profiler/analysis/figures/window_figures.h"

namespace shardlens::analysis {

// One figure of a window: its names and where its value is. Text, CSV, JSON, the report, check and
// the app loop over the rows, so a new figure is a field of WindowFigures, its computation, and a
// row.
struct FigureRow {
  std::string_view key;    // in JSON and CSV; its ending is the unit: "exposed_comm_ns"
  std::string_view label;  // heading in tables
  bool part = false;       // one of the parts that sum to the window; tables round them together
  bool column = true;      // has a column in the tables of `analyze` (JSON and CSV have all)
  // Name in `check` and `compare`; "": they measure it in another way.
  std::string_view metric = {};
  // One of the two is set. nullopt: the trace does not tell.
  Nanoseconds (*time)(const WindowFigures& figures) = nullptr;
  std::optional<double> (*ratio)(const WindowFigures& figures) = nullptr;
};

// In the order of the columns of CSV.
[[nodiscard]] std::span<const FigureRow> figure_table();

}  // namespace shardlens::analysis
