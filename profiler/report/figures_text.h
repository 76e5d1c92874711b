#pragma once

#include <optional>
#include <string>

#include "core/base/shown.h"
#include "profiler/analysis/analysis.h"
#include "profiler/report/table.h"

// Sections of the text output of `analyze` other than headline, units and order; each is "" if it
// has no content.
namespace shardlens::report {

// Causes of idle time, launch latency and queue depth, on one line.
[[nodiscard]] Shown device_line(const analysis::RankAnalysis& rank);
// A table by rank and kind, then a table of collectives matched across ranks, by kind, group and
// size.
[[nodiscard]] Shown collectives_section(const analysis::Analysis& analysis,
                                        std::optional<size_t> top,
                                        Style style);
// Clocks of the ranks, and how often each was the last to start a collective.
[[nodiscard]] Shown ranks_section(const analysis::Analysis& analysis, Style style);
[[nodiscard]] Shown critical_path_section(const analysis::Analysis& analysis,
                                          std::optional<size_t> top,
                                          Style style);
[[nodiscard]] Shown memory_section(const analysis::Analysis& analysis, Style style);

}  // namespace shardlens::report
