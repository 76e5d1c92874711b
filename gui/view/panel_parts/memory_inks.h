#pragma once

#include "gui/view/widgets/canvas.h"
#include "sim/memory/peak_memory.h"

namespace shardlens::gui {

[[nodiscard]] constexpr Ink ink_of(sim::MemoryCategory category) {
  constexpr Ink kInks[sim::kMemoryCategoryCount] = {Ink::kCompute,   Ink::kReduceScatter,
                                                    Ink::kHost,      Ink::kMemory,
                                                    Ink::kAllGather, Ink::kAllReduce};
  return kInks[static_cast<size_t>(category)];
}

}  // namespace shardlens::gui
