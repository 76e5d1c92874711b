#pragma once

#include <cstdint>
#include <string>

#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// Whether neither the trace nor its file's name has a rank, so that Run gave it one.
[[nodiscard]] bool is_unranked(const Trace& trace);
// The diagnostic of such a trace.
[[nodiscard]] std::string read_as_rank(int64_t rank);

}  // namespace shardlens::trace
