#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/check/run_summary.h"

namespace shardlens::check {

// Runs as a file, so that a gate needs no traces of the baseline: version 1, a JSON object
// {"shardlens_baseline": 1, "runs": […]}, docs/ci.md. parse_baseline(to_json(runs)) gives the same
// runs.
[[nodiscard]] std::string to_json(const std::vector<RunSummary>& runs);
// Errors: InputError with file and what was expected, also for another version.
[[nodiscard]] std::vector<RunSummary> parse_baseline(std::string_view json,
                                                     const std::string& source);

// Whether the file is such a baseline (else it may be a trace), told by its first bytes.
[[nodiscard]] bool is_baseline_file(const std::filesystem::path& path);

// Where the runs under `path` are, each as Run::open() takes it: a capture directory, a directory
// of traces, a trace or a spool is one run; a directory of these holds several, by name. Whether a
// file is one is not looked at. Errors: InputError for what is not there, or a directory of none.
[[nodiscard]] std::vector<std::filesystem::path> run_paths(const std::filesystem::path& path);

// The runs themselves; of a baseline file those in it. Errors: InputError.
[[nodiscard]] std::vector<RunSummary> read_runs(const std::filesystem::path& path,
                                                const SummaryOptions& options = {});

}  // namespace shardlens::check
