#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "profiler/analysis/figures/window_figures.h"

namespace shardlens::analysis {

// One figure of a window: its names and where its value is. Text, CSV, JSON, the report, check, the
// app and the files of summaries loop over the rows, and Python reads what they write, so a new
// figure is a member of StepFigures, its computation, and a row.
struct FigureRow {
  std::string_view key;    // in JSON and CSV; its ending is the unit: "exposed_comm_ns"
  std::string_view label;  // heading in tables
  bool part = false;       // one of the parts that sum to the window; tables round them together
  bool column = true;      // has a column in the tables of `analyze` (JSON and CSV have all)
  // Name in `check` and `compare`; "": they measure it in another way.
  std::string_view metric = {};
  // Where it is kept, in files of summaries too; nullptr: it follows from other figures.
  Nanoseconds StepFigures::*member = nullptr;
  // One of the two is set. nullopt: the trace does not tell.
  Nanoseconds (*time)(const WindowFigures& figures) = nullptr;
  std::optional<double> (*ratio)(const WindowFigures& figures) = nullptr;
};

// In the order of the columns of CSV.
[[nodiscard]] std::span<const FigureRow> figure_table();

// One figure of the collectives of a kind, for JSON, CSV and the files of summaries.
struct KindFigureRow {
  std::string_view key;
  // One of the two is set.
  int64_t KindFigures::*number = nullptr;
  std::optional<double> KindFigures::*ratio = nullptr;
  // Whether the number is known; nullptr: always.
  bool (*known)(const KindFigures& figures) = nullptr;
  bool of_rank = true;  // does not depend on other ranks: summaries contain it

  [[nodiscard]] std::optional<int64_t> number_of(const KindFigures& figures) const {
    return known == nullptr || known(figures) ? std::optional(figures.*number) : std::nullopt;
  }
};

// In the order of the columns of CSV.
[[nodiscard]] std::span<const KindFigureRow> kind_figure_table();

}  // namespace shardlens::analysis
