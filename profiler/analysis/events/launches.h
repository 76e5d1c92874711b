#pragma once

#include <cstdint>
#include <vector>

#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The call on the host (cuda_runtime or cuda_driver) that launched what runs on the device, by
// correlation; of several with one correlation, the first in the file.
//
// Complexity  O(1) a look-up; 8 bytes at most for each launch.
class LaunchIndex {
 public:
  explicit LaunchIndex(const trace::Trace& trace);
  // Index into Trace::events; kNoIndex: not in the trace.
  [[nodiscard]] uint32_t of(uint32_t correlation) const;

 private:
  const trace::Trace& trace_;
  std::vector<uint32_t> slots_;  // open addressing, a power of two; kNoIndex: free
};

}  // namespace shardlens::analysis
