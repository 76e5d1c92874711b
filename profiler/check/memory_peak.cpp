#include "profiler/check/memory_peak.h"

#include <algorithm>

#include "profiler/analysis/figures/memory_figures.h"

namespace shardlens::check {
namespace {

bool is_among(const std::vector<int64_t>& steps, int64_t step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

std::optional<MemoryPeak> peak_of(const analysis::MemoryFigures& memory,
                                  int64_t rank,
                                  const std::vector<int64_t>& steps) {
  std::optional<MemoryPeak> most;
  for (const auto& step : memory.steps) {
    if (is_among(steps, step.step) && (!most || step.allocated > most->peak)) {
      most = MemoryPeak{rank, memory.device, std::max(step.before, Bytes{0}), step.allocated};
    }
  }
  return most;
}

// Of the rank that wrote the metrics, the first one.
std::optional<MemoryPeak> peak_of_metrics(const trace::Run& run,
                                          const std::vector<int64_t>& steps) {
  std::optional<MemoryPeak> most;
  std::optional<Bytes> kept;
  for (const trace::StepMetrics& step : run.metrics) {
    if (step.peak_allocated && is_among(steps, step.step) &&
        (!most || *step.peak_allocated > most->peak)) {
      most = MemoryPeak{run.traces.front().metadata.rank.value_or(0), "cuda", kept,
                        *step.peak_allocated};
    }
    kept = step.allocated;
  }
  return most;
}

}  // namespace

std::vector<MemoryPeak> memory_peaks(const trace::Run& run,
                                     std::span<const analysis::Timeline> timelines,
                                     const std::vector<int64_t>& steps) {
  std::vector<MemoryPeak> out;
  for (size_t r = 0; r < timelines.size(); ++r) {
    for (const auto& memory : analysis::memory_figures(run.traces[r], timelines[r])) {
      if (memory.from_driver) {
        continue;  // grows with the allocator's segments, not with what the program has
      }
      if (auto peak = peak_of(memory, run.traces[r].metadata.rank.value_or(0), steps)) {
        out.push_back(std::move(*peak));
      }
    }
  }
  if (out.empty()) {
    if (auto peak = peak_of_metrics(run, steps)) {
      out.push_back(std::move(*peak));
    }
  }
  return out;
}

}  // namespace shardlens::check
