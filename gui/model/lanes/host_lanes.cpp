#include "gui/model/lanes/host_lanes.h"

#include <cstdint>

#include "profiler/analysis/events/nesting.h"

namespace shardlens::gui {

std::vector<LaneItem> outermost_operators(const trace::Trace& trace,
                                          const analysis::Timeline& timeline) {
  std::vector<uint32_t> order = timeline.lists.operators;
  analysis::sort_by_track_and_start(trace, order);
  std::vector<LaneItem> out;
  uint32_t track = trace::kNoIndex;
  for (const uint32_t i : order) {
    const trace::Event& event = trace.events[i];
    const bool inside = event.track == track && event.start < out.back().end;
    if (event.duration > 0 && !inside) {
      out.push_back({event.start, event.end(), i});
      track = event.track;
    }
  }
  return out;
}

std::vector<LaneItem> runtime_calls(const trace::Trace& trace, const analysis::Timeline& timeline) {
  std::vector<LaneItem> out;
  out.reserve(timeline.lists.calls.size());
  for (const analysis::EventLists::Call& call : timeline.lists.calls) {
    const trace::Event& event = trace.events[call.event];
    if (event.duration > 0) {
      out.push_back({event.start, event.end(), call.event});
    }
  }
  return out;
}

}  // namespace shardlens::gui
