#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/run.h"

namespace shardlens::check {

// The step of a rank that had the most memory of a device allocated, as PyTorch's allocator counts
// it: of a GPU all that it has given out, of a CPU what was allocated since recording began.
struct MemoryPeak {
  int64_t rank = 0;
  std::string device;         // "cuda:0", "cpu"; "cuda": from a capture's metrics.jsonl
  std::optional<Bytes> kept;  // when that step began: parameters, gradients, optimizer states
  Bytes peak = 0;
  bool operator==(const MemoryPeak&) const = default;
};

// By rank and device: from the allocations in the traces, else, of a capture on a GPU, from its
// metrics. Empty if the run recorded neither. `steps`: the numbers of the steps that count.
[[nodiscard]] std::vector<MemoryPeak> memory_peaks(const trace::Run& run,
                                                   std::span<const analysis::Timeline> timelines,
                                                   const std::vector<int64_t>& steps);

}  // namespace shardlens::check
