#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/base/units.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// One line of metrics.jsonl.
struct StepMetrics {
  int64_t step = 0;
  std::optional<double> loss, grad_norm, step_ms, tokens_per_s;
  // By PyTorch's allocator of the device: the most during the step, and what was left after it.
  std::optional<Bytes> peak_allocated, allocated;
};

// Reads metrics.jsonl, one step a line. Lines that are not metrics of a step are left out with a
// diagnostic.
[[nodiscard]] std::vector<StepMetrics> read_metrics(const std::filesystem::path& path,
                                                    std::vector<Diagnostic>& diagnostics);

}  // namespace shardlens::trace
