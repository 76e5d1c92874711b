#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/shown.h"
#include "profiler/analysis/analysis.h"

#include "cli/flags/outputs.h"

namespace shardlens::cli {

struct WrittenSummary {  // of one trace
  std::optional<int64_t> rank;
  std::filesystem::path path, trace;
  uint64_t bytes = 0, trace_bytes = 0;
};

// Writes a summary of each trace of `paths` for `merge`, into the directory of --out, or next to
// its trace without it. Traces are read one after the other, on each processor.
//
// Errors  InputError for a trace that cannot be read or summarized, and for two traces whose
//         summaries have one name.
[[nodiscard]] std::vector<WrittenSummary> write_summaries(
    std::span<const std::filesystem::path> paths,
    const Outputs& outputs,
    const analysis::AnalysisOptions& options,
    const std::string& comm_regex);

// What `analyze --summarize` prints of them: docs/reference/cli.md.
[[nodiscard]] std::string summaries_json(const std::vector<WrittenSummary>& all);
[[nodiscard]] Shown summaries_text(const std::vector<WrittenSummary>& all);

}  // namespace shardlens::cli
