#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/check/run_summary.h"

namespace shardlens::check {

// Writes runs to a file, so that a gate does not need the baseline's traces: version 1, a JSON
// object {"shardlens_baseline": 1, "runs": […]}, docs/use/gate-ci.md. parse_baseline(to_json(runs))
// returns equal runs.
[[nodiscard]] std::string to_json(const std::vector<RunSummary>& runs);
// Errors: InputError with the file and what was expected; also for another version.
[[nodiscard]] std::vector<RunSummary> parse_baseline(std::string_view json,
                                                     const std::string& source);

// Gives runs without a session the next number: the runs that are saved together are one session.
void add_session(std::vector<RunSummary>& runs);

// Whether the file is a baseline (otherwise it may be a trace), judged by its first bytes.
[[nodiscard]] bool is_baseline_file(const std::filesystem::path& path);

// The paths of the runs under `path`, each suitable for Run::open(): a capture directory, a
// directory of traces, a trace or a spool is one run; a directory that contains such directories is
// several runs, sorted by name. The contents of files are not checked. Errors: InputError if the
// path does not exist or is a directory without runs.
[[nodiscard]] std::vector<std::filesystem::path> run_paths(const std::filesystem::path& path);

// Reads the runs, or the contents of a baseline file. Errors: InputError.
[[nodiscard]] std::vector<RunSummary> read_runs(const std::filesystem::path& path,
                                                const SummaryOptions& options = {});

}  // namespace shardlens::check
