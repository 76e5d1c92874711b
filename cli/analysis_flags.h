#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "profiler/analysis/analysis.h"

namespace shardlens::cli {

// What every subcommand that analyzes a run takes.
struct AnalysisFlags {
  std::vector<std::filesystem::path> paths;
  std::string steps, comm_regex;
};

// Adds PATH…, --steps and --comm-regex. `flags` must outlive the parsing.
void add_analysis_flags(CLI::App& app, AnalysisFlags& flags);

// Errors: UsageError for a range or an expression that cannot be read.
[[nodiscard]] analysis::AnalysisOptions analysis_options(const AnalysisFlags& flags);

}  // namespace shardlens::cli
