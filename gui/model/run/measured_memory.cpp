#include "gui/model/run/measured_memory.h"

#include <algorithm>

namespace shardlens::gui {

std::vector<MeasuredMemory> measured_memory(const SelectionContext& selection) {
  std::vector<MeasuredMemory> out;
  const RankData* rank = selection.rank();
  if (rank == nullptr || rank->timeline.steps.empty()) {
    return out;
  }
  const analysis::MemoryFigures* memory = nullptr;
  for (const analysis::MemoryFigures& each : rank->figures.memory) {
    if (!each.from_driver && (memory == nullptr || each.device.starts_with("cuda"))) {
      memory = &each;
    }
  }
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

}  // namespace shardlens::gui
