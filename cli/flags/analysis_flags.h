#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "profiler/analysis/analysis.h"
#include "profiler/check/run_summary.h"

namespace shardlens::cli {

// Which steps are analyzed, and which events count as communication.
struct SelectionFlags {
  std::string steps, comm_regex;
  std::optional<int64_t> device;
};

// Arguments of every subcommand that analyzes one run.
struct AnalysisFlags {
  std::vector<std::filesystem::path> paths;
  SelectionFlags selection;
};

// Adds --steps, --comm-regex and --device. `flags` must outlive the parsing.
void add_selection_flags(CLI::App& app, SelectionFlags& flags);
// Adds PATH… as well.
void add_analysis_flags(CLI::App& app, AnalysisFlags& flags);

// Errors: UsageError for an invalid range or regular expression.
[[nodiscard]] analysis::AnalysisOptions analysis_options(const SelectionFlags& flags);
[[nodiscard]] check::SummaryOptions summary_options(const SelectionFlags& flags);

}  // namespace shardlens::cli
