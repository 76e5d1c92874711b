#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "profiler/analysis/analysis.h"

#include "cli/flags/outputs.h"

namespace shardlens::cli {

// Writes a summary of each trace of `paths` for `merge`, into the directory of --out, or next to
// its trace without it. Traces are read one after the other, on each processor.
//
// Returns  what to print: a line for each file, or JSON (docs/cli.md).
// Errors   InputError for a trace that cannot be read or summarized, and for two traces whose
//          summaries have one name.
[[nodiscard]] std::string write_summaries(std::span<const std::filesystem::path> paths,
                                          const Outputs& outputs,
                                          const analysis::AnalysisOptions& options,
                                          const std::string& comm_regex,
                                          bool json);

}  // namespace shardlens::cli
