#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/shown.h"
#include "profiler/analysis/analysis.h"
#include "profiler/report/table.h"

namespace shardlens::report {

using CausesOfParts = std::set<std::pair<analysis::ExposedCause, analysis::UnitPart>>;

// The findings about single ranks in analyze_text; "" if there are none.

// The causes that a table named, each explained, with what helps.
[[nodiscard]] Shown causes_text(const CausesOfParts& causes);
// Blocks alike: median and worst exposed time of each part, and the outliers.
[[nodiscard]] Shown blocks_text(const analysis::RankAnalysis& rank, Style style);
// The time in which each process group's communication overlaps with others: compute, and that of
// other groups.
[[nodiscard]] Shown groups_text(const analysis::RankAnalysis& rank, Style style);
// The purposes of communication; "" if only FSDP or DDP communicated, or it is not known. A row for
// each purpose, group and kind.
[[nodiscard]] Shown communication_table(
    const std::vector<analysis::CommunicationFigures>& communication, Style style);
[[nodiscard]] Shown purposes_text(const analysis::RankAnalysis& rank, Style style);
// The waste of the rank on which most was lost.
[[nodiscard]] Shown waste_text(const analysis::Analysis& analysis, Style style);
// For each rank the most exposed collectives of `unit`, and how their causes were concluded.
[[nodiscard]] Shown explained_text(const analysis::Analysis& analysis,
                                   const std::string& unit,
                                   std::optional<size_t> top,
                                   Style style);

// The unit's name for display: "(root)" for "".
[[nodiscard]] std::string shown_unit(const std::string& fqn);

}  // namespace shardlens::report
