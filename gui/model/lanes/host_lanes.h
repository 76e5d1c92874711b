#pragma once

#include <cstdint>
#include <vector>

#include "gui/model/lanes/level_of_detail.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::gui {

// Trace::events; LaneItem::ref is the position.
[[nodiscard]] ItemTable items_of(const trace::Trace& trace);

// The host's work in a trace of a device: operators that no other operator contains, and calls of
// the device's runtime and driver, as positions in items_of(trace).
[[nodiscard]] std::vector<uint32_t> outermost_operators(const trace::Trace& trace,
                                                        const analysis::Timeline& timeline);
[[nodiscard]] std::vector<uint32_t> runtime_calls(const trace::Trace& trace,
                                                  const analysis::Timeline& timeline);

}  // namespace shardlens::gui
