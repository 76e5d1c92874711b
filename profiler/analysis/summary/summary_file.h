#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/rank_summary.h"

namespace shardlens::analysis {

// The version of the format, which docs/reference/formats.md describes. It changes with the names
// of fields, and with what a figure means.
inline constexpr int kSummaryVersion = 4;
inline constexpr std::string_view kSummaryEnding = ".summary.msgpack.gz";

// "rank7.summary.msgpack.gz"; without a rank, the name of the trace with that ending.
[[nodiscard]] std::string summary_name(const RankSummary& summary);

// The bytes of the file: MessagePack, compressed with gzip. `summary` needs spans.
//
// Errors  InputError for what cannot be read back: times or sizes beyond those of any run.
[[nodiscard]] std::string to_summary_bytes(RankSummary summary);

// `bytes`: MessagePack, inflated. `where`: the file's name, for messages.
//
// Errors  InputError for bytes that are no summary, have another version, are cut off or damaged,
//         or contain values that no summary has.
[[nodiscard]] RankSummary parse_summary(const std::string& bytes, const std::string& where);

// Errors  those of parse_summary(), and InputError for a file that cannot be read or inflated.
[[nodiscard]] RankSummary read_summary(const std::filesystem::path& path);

// The summaries of a directory, sorted by name, or `path` itself if it is a file.
//
// Errors  InputError for a directory that contains none.
[[nodiscard]] std::vector<std::filesystem::path> summary_paths(const std::filesystem::path& path);

}  // namespace shardlens::analysis
