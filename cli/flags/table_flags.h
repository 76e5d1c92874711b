#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <CLI/App.hpp>

#include "profiler/report/analysis_report.h"

namespace shardlens::cli {

// How `analyze` and `merge` print an analysis.
struct TableFlags {
  bool json = false, csv = false, each = false;
  std::string by = "unit";
  std::optional<int64_t> top;

  // Errors: UsageError for a name that no table has, and for less than one row.
  [[nodiscard]] report::By table() const;
  [[nodiscard]] std::optional<size_t> rows() const;
};

// Adds --json, --csv, --by, --top and --each. `flags` must outlive the parsing.
void add_table_flags(CLI::App& app, TableFlags& flags);

}  // namespace shardlens::cli
