#include "gui/model/lanes/nested_operators.h"

#include <algorithm>
#include <utility>

#include "gui/model/lanes/host_lanes.h"
#include "profiler/analysis/events/nesting.h"

namespace shardlens::gui {
namespace {

bool is_nested_kind(const trace::Event& event) {
  return event.duration > 0 && (event.category == trace::Category::kCpuOp ||
                                event.category == trace::Category::kUserAnnotation);
}

}  // namespace

std::vector<NestedThread> nested_operators(const trace::Trace& trace) {
  const std::vector<uint32_t> order = analysis::by_track_and_start(trace, is_nested_kind);
  std::vector<NestedThread> out;
  for (size_t begin = 0; begin < order.size();) {
    const uint32_t track = trace.events[order[begin]].track;
    std::vector<std::vector<uint32_t>> depths;
    std::vector<Nanoseconds> open;  // ends of the events that are open, from the outermost on
    size_t at = begin;
    for (; at < order.size() && trace.events[order[at]].track == track; ++at) {
      const trace::Event& event = trace.events[order[at]];
      while (!open.empty() && open.back() <= event.start) {
        open.pop_back();
      }
      if (open.size() == depths.size()) {
        depths.emplace_back();
      }
      depths[open.size()].push_back(order[at]);
      open.push_back(event.end());
    }
    NestedThread& thread = out.emplace_back();
    thread.track = track;
    for (std::vector<uint32_t>& positions : depths) {
      positions.shrink_to_fit();
      thread.depths.emplace_back(items_of(trace), std::move(positions));
    }
    begin = at;
  }
  std::ranges::stable_sort(out, {}, [](const NestedThread& thread) {
    return thread.depths.front().items().front().start;
  });
  return out;
}

}  // namespace shardlens::gui
