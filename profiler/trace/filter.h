#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "profiler/trace/trace.h"

namespace shardlens::trace {

struct Filter {
  std::optional<std::pair<int64_t, int64_t>> steps;  // first ≤ k < last, by ProfilerStep#k
  std::vector<std::string> categories;               // empty: all; ProfilerStep marks always stay
};

// Removes events. Of a chosen step, all that starts within its ProfilerStep stays, and device
// events that were launched there (by correlation), however late they ran. Side tables keep entries
// that no event refers to any more. Errors: InputError if steps are asked for and the trace has
// none of them.
void apply(const Filter& filter, Trace& trace);

}  // namespace shardlens::trace
