#pragma once

#include <filesystem>
#include <vector>

#include "profiler/trace/model/recorded_action.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// Reads rank<r>.actions.jsonl, one action or hook event a line; hook events are checked and left
// out. Lines that are neither are left out with a diagnostic that names the first one's number.
[[nodiscard]] std::vector<RecordedAction> read_actions(const std::filesystem::path& path,
                                                       std::vector<Diagnostic>& diagnostics);

}  // namespace shardlens::trace
