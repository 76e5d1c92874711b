#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "profiler/analysis/analysis.h"
#include "profiler/check/run_summary.h"

namespace shardlens::cli {

// Which steps count, and what communicates.
struct SelectionFlags {
  std::string steps, comm_regex;
};

// What every subcommand that analyzes one run takes.
struct AnalysisFlags {
  std::vector<std::filesystem::path> paths;
  SelectionFlags selection;
};

// Adds --steps and --comm-regex. `flags` must outlive the parsing.
void add_selection_flags(CLI::App& app, SelectionFlags& flags);
// Adds PATH… too.
void add_analysis_flags(CLI::App& app, AnalysisFlags& flags);

// Errors: UsageError for a range or an expression that cannot be read.
[[nodiscard]] analysis::AnalysisOptions analysis_options(const SelectionFlags& flags);
[[nodiscard]] check::SummaryOptions summary_options(const SelectionFlags& flags);

}  // namespace shardlens::cli
