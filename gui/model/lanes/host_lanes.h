#pragma once

#include <vector>

#include "gui/model/lanes/level_of_detail.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::gui {

// The host's work in a trace of a device: operators that no other operator contains, and calls of
// the device's runtime and driver. LaneItem::ref is an index into Trace::events.
[[nodiscard]] std::vector<LaneItem> outermost_operators(const trace::Trace& trace,
                                                        const analysis::Timeline& timeline);
[[nodiscard]] std::vector<LaneItem> runtime_calls(const trace::Trace& trace,
                                                  const analysis::Timeline& timeline);

}  // namespace shardlens::gui
