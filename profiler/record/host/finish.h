#pragma once

#include <filesystem>

#include "profiler/record/host/spool_recorder.h"

namespace shardlens::record {

// DIR/rank<r>.pt.trace.json.gz
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& directory, int rank);

// Ends the recording and converts the spool to DIR/rank<r>.pt.trace.json.gz; then removes the spool
// and its .now page. Losses of the recording are listed in the trace's notes. Returns the trace's
// path. Errors: RuntimeFault if the trace cannot be written; the spool is then kept.
std::filesystem::path finish_trace(SpoolRecorder& recorder);

}  // namespace shardlens::record
