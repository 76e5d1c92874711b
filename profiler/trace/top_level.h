#pragma once

#include <string>
#include <vector>

#include "profiler/trace/json_cursor.h"
#include "profiler/trace/trace.h"

// Members of a trace file beside its events; used by the reader alone.
namespace shardlens::trace {

// Puts a member into the trace's metadata; values that are not understood are kept as text, unless
// they are large.
void read_top_level(const std::string& key,
                    const JsonValue& value,
                    const JsonCursor& cursor,
                    Trace& trace);

// Of the member "shardlens": FQNs by UnitId.
[[nodiscard]] std::vector<std::string> units_of(const JsonValue& value);

}  // namespace shardlens::trace
