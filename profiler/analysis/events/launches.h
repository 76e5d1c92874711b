#pragma once

#include <cstdint>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/events/event_lists.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Finds the host call (trace::is_runtime_call()) that launched a device event, by correlation;
// if several calls have the same correlation, the first in the file.
//
// Complexity  O(1) per look-up; at most 12 bytes per launch.
class LaunchIndex {
 public:
  using Call = EventLists::Call;

  // Refers to the calls.
  explicit LaunchIndex(const std::vector<Call>& calls);
  // nullptr: not in the trace.
  [[nodiscard]] const Call* find(uint32_t correlation) const;
  // Index into Trace::events; kNoIndex: not in the trace.
  [[nodiscard]] uint32_t of(uint32_t correlation) const;

 private:
  const std::vector<Call>& calls_;
  // Positions in `calls_`. Correlations count up, so a table from the lowest to the highest usually
  // has few free places; otherwise open addressing, a power of two. kNoIndex: free.
  std::vector<uint32_t> slots_;
  uint32_t first_ = 0;
  bool direct_ = false;
};

}  // namespace shardlens::analysis
