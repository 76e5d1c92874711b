#pragma once

#include <optional>
#include <string>

#include "profiler/analysis/analysis.h"
#include "profiler/report/table.h"

// Sections of `analyze`'s text beside headline, units and order; each "" where there is nothing.
namespace shardlens::report {

// Causes of idle time, launch latency and queue depth, on one line.
[[nodiscard]] std::string device_line(const analysis::RankAnalysis& rank);
// Rows by kind and rank, then those matched across ranks by kind, group and size.
[[nodiscard]] std::string collectives_section(const analysis::Analysis& analysis,
                                              std::optional<size_t> top,
                                              Style style);
// Clocks of the ranks, and who came last.
[[nodiscard]] std::string ranks_section(const analysis::Analysis& analysis, Style style);
[[nodiscard]] std::string critical_path_section(const analysis::Analysis& analysis,
                                                std::optional<size_t> top,
                                                Style style);
[[nodiscard]] std::string memory_section(const analysis::Analysis& analysis, Style style);

}  // namespace shardlens::report
