#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/rank_summary.h"

namespace shardlens::analysis {

// The version of the format, which docs/trace_format.md describes. It changes with the names of
// fields, and with what a figure means.
inline constexpr int kSummaryVersion = 1;
inline constexpr std::string_view kSummaryEnding = ".summary.msgpack.gz";

// "rank7.summary.msgpack.gz"; without a rank, the name of the trace with that ending.
[[nodiscard]] std::string summary_name(const RankSummary& summary);

// The bytes of the file: MessagePack, compressed with gzip. `summary` needs spans.
//
// Errors  InputError for what cannot be read back: times or sizes beyond those of any run.
[[nodiscard]] std::string to_summary_bytes(RankSummary summary);

// Errors  InputError for a file that is no summary, has another version, is cut off or damaged, or
//         contains values that no summary has.
[[nodiscard]] RankSummary read_summary(const std::filesystem::path& path);

// The summaries of a directory, sorted by name, or `path` itself if it is a file.
//
// Errors  InputError for a directory that contains none.
[[nodiscard]] std::vector<std::filesystem::path> summary_paths(const std::filesystem::path& path);

}  // namespace shardlens::analysis
