#pragma once

#include <filesystem>

#include "profiler/record/spool_recorder.h"

namespace shardlens::record {

// DIR/rank<r>.pt.trace.json.gz
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& directory, int rank);

// Ends the recording and turns the spool into DIR/rank<r>.pt.trace.json.gz; then removes the spool
// and the page beside it. What the recording lost is in the trace's notes. Returns the trace's
// path. Errors: RuntimeFault if the trace cannot be written; the spool then stays.
std::filesystem::path finish_trace(SpoolRecorder& recorder);

}  // namespace shardlens::record
