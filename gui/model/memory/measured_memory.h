#pragma once

#include <optional>
#include <vector>

#include "gui/model/run/selection_context.h"

namespace shardlens::gui {

// The memory that the trace's allocator had allocated, at a time since the step began.
struct MeasuredMemory {
  Nanoseconds time = 0;
  Bytes allocated = 0;
};

// Of the selected step of the selected rank, otherwise of its last one; of the GPU if the rank
// recorded several devices. Empty if the trace has no record of an allocator or no steps.
[[nodiscard]] std::vector<MeasuredMemory> measured_memory(const SelectionContext& selection);

// The peak of PyTorch's allocator in the steps that the traces contain: over all ranks whose traces
// have a record of the allocator (of their GPU, if there are several devices), else from
// metrics.jsonl. nullopt: not measured, or no steps.
[[nodiscard]] std::optional<Bytes> measured_peak(const RunData& run);

}  // namespace shardlens::gui
