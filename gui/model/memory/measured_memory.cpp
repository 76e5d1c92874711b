#include "gui/model/memory/measured_memory.h"

#include <algorithm>

namespace shardlens::gui {
namespace {

// The record of the rank's allocator; nullptr: none.
const analysis::MemoryFigures* record_of(const RankData& rank) {
  const analysis::MemoryFigures* memory = nullptr;
  for (const analysis::MemoryFigures& each : rank.figures.memory) {
    if (!each.from_driver && (memory == nullptr || each.device.starts_with("cuda"))) {
      memory = &each;
    }
  }
  return memory;
}

}  // namespace

std::vector<MeasuredMemory> measured_memory(const SelectionContext& selection) {
  std::vector<MeasuredMemory> out;
  const RankData* rank = selection.rank();
  if (rank == nullptr || rank->timeline.steps.empty()) {
    return out;
  }
  const analysis::MemoryFigures* memory = record_of(*rank);
  if (memory == nullptr) {
    return out;
  }
  const auto& steps = rank->timeline.steps;
  const size_t chosen = selection.current().step.value_or(steps.size() - 1);
  const analysis::Interval host = steps[std::min(chosen, steps.size() - 1)].host;
  for (const analysis::MemoryPoint& point : memory->timeline) {
    if (point.time < host.start) {
      out.assign(1, {0, point.allocated});
    } else if (point.time < host.end) {
      out.push_back({point.time - host.start, point.allocated});
    }
  }
  return out;
}

std::optional<Bytes> measured_peak(const RunData& run) {
  std::optional<Bytes> out;
  const auto take = [&out](Bytes peak) { out = std::max(out.value_or(0), peak); };
  for (const auto& rank : run.ranks) {
    if (const analysis::MemoryFigures* memory = record_of(*rank)) {
      for (const analysis::MemoryFigures::StepPeak& step : memory->steps) {
        take(step.allocated);
      }
    }
  }
  if (out || run.ranks.empty()) {
    return out;
  }
  const auto& steps = run.ranks.front()->figures.steps;
  for (const trace::StepMetrics& each : run.run.metrics) {
    const bool traced =
        std::ranges::find(steps, each.step, &analysis::StepAnalysis::step) != steps.end();
    if (traced && each.peak_allocated) {
      take(*each.peak_allocated);
    }
  }
  return out;
}

}  // namespace shardlens::gui
