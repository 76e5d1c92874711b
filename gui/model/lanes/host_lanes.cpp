#include "gui/model/lanes/host_lanes.h"

#include "profiler/analysis/events/nesting.h"

namespace shardlens::gui {

ItemTable items_of(const trace::Trace& trace) {
  return {&trace, [](const void* table, uint32_t position) -> LaneItem {
            const trace::Event& event = static_cast<const trace::Trace*>(table)->events[position];
            return {event.start, event.end(), position};
          }};
}

std::vector<uint32_t> outermost_operators(const trace::Trace& trace,
                                          const analysis::Timeline& timeline) {
  std::vector<uint32_t> order = timeline.lists.operators;
  analysis::sort_by_track_and_start(trace, order);
  std::vector<uint32_t> out;
  uint32_t track = trace::kNoIndex;
  Nanoseconds end = 0;  // of the last one
  for (const uint32_t i : order) {
    const trace::Event& event = trace.events[i];
    const bool inside = event.track == track && event.start < end;
    if (event.duration > 0 && !inside) {
      out.push_back(i);
      track = event.track;
      end = event.end();
    }
  }
  return out;
}

std::vector<uint32_t> runtime_calls(const trace::Trace& trace, const analysis::Timeline& timeline) {
  std::vector<uint32_t> out;
  out.reserve(timeline.lists.calls.size());
  for (const analysis::EventLists::Call& call : timeline.lists.calls) {
    if (trace.events[call.event].duration > 0) {
      out.push_back(call.event);
    }
  }
  return out;
}

}  // namespace shardlens::gui
