#pragma once

#include <filesystem>
#include <functional>
#include <span>

#include "profiler/analysis/analysis.h"

namespace shardlens::analysis {

// Analyzes the run whose ranks' summaries are in these files, by rank. Each rank's figures are
// passed on as soon as they are known; the result has no ranks.
//
// [Note: Memory of a merge] Only the collectives of all ranks are in memory together; each file is
// read twice, first for these.
//
// Errors  those of read_summary(), before the first rank is passed on; InputError for two summaries
//         of one rank, and for summaries that were made with different --steps or --comm-regex.
[[nodiscard]] Analysis merge_summaries(std::span<const std::filesystem::path> files,
                                       const std::function<void(RankAnalysis&&)>& each);

}  // namespace shardlens::analysis
