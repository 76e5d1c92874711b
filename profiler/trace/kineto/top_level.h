#pragma once

#include <string>
#include <vector>

#include "profiler/trace/json/json_cursor.h"
#include "profiler/trace/model/trace.h"

// Members of a trace file other than its events. Used only by the reader.
namespace shardlens::trace {

// Adds a member to the trace's metadata. Unknown members are kept as text, unless they are large.
void read_top_level(const std::string& key,
                    const JsonValue& value,
                    const JsonCursor& cursor,
                    Trace& trace);

// The member "shardlens".
struct OwnMember {
  std::vector<std::string> units;  // FQNs by UnitId
  std::vector<Diagnostic> notes;   // Metadata::notes
};
[[nodiscard]] OwnMember own_member(const JsonValue& value);

}  // namespace shardlens::trace
