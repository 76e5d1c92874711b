#pragma once

#include <cstdint>
#include <vector>

#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Finds the host call (cuda_runtime or cuda_driver) that launched a device event, by correlation;
// if several calls have the same correlation, the first in the file.
//
// Complexity  O(1) per look-up; at most 12 bytes per launch.
class LaunchIndex {
 public:
  // `calls`: the trace's host calls (EventLists::calls).
  LaunchIndex(const trace::Trace& trace, const std::vector<uint32_t>& calls);
  // Index into Trace::events; kNoIndex: not in the trace.
  [[nodiscard]] uint32_t of(uint32_t correlation) const;

 private:
  const trace::Trace& trace_;
  // Correlations count up, so a table from the lowest to the highest usually has few free places;
  // otherwise open addressing, a power of two. kNoIndex: free.
  std::vector<uint32_t> slots_;
  uint32_t first_ = 0;
  bool direct_ = false;
};

}  // namespace shardlens::analysis
