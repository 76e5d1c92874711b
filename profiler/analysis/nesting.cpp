#include "profiler/analysis/nesting.h"

#include <algorithm>

namespace shardlens::analysis {

using trace::Event;
using trace::Phase;

void walk_nested(const trace::Trace& trace,
                 const std::function<bool(const Event&)>& wanted,
                 const std::function<void(uint32_t event, std::span<const uint32_t> open)>& visit) {
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].phase == Phase::kComplete && wanted(trace.events[i])) {
      order.push_back(i);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const Event &x = trace.events[a], &y = trace.events[b];
    if (x.track != y.track) {
      return x.track < y.track;
    }
    return x.start != y.start ? x.start < y.start : x.duration > y.duration;
  });
  std::vector<uint32_t> open;
  for (const uint32_t i : order) {
    const Event& event = trace.events[i];
    while (!open.empty() && (trace.events[open.back()].track != event.track ||
                             trace.events[open.back()].end() <= event.start)) {
      open.pop_back();
    }
    visit(i, open);
    open.push_back(i);
  }
}

RangeFinder::RangeFinder(const trace::Trace& trace, const std::function<bool(const Event&)>& wanted)
    : trace_(trace) {
  std::unordered_map<uint32_t, int32_t> position;  // of an event within its track
  walk_nested(trace, wanted, [&](uint32_t event, std::span<const uint32_t> open) {
    std::vector<Node>& nodes = tracks_[trace.events[event].track];
    position[event] = static_cast<int32_t>(nodes.size());
    nodes.push_back({event, open.empty() ? -1 : position.at(open.back())});
  });
}

std::vector<uint32_t> RangeFinder::around(uint32_t track, Nanoseconds instant) const {
  std::vector<uint32_t> found;
  const auto it = tracks_.find(track);
  if (it == tracks_.end()) {
    return found;
  }
  const std::vector<Node>& nodes = it->second;
  const auto after = std::upper_bound(
      nodes.begin(), nodes.end(), instant,
      [&](Nanoseconds t, const Node& node) { return t < trace_.events[node.event].start; });
  auto i = static_cast<int32_t>(after - nodes.begin()) - 1;
  while (i >= 0) {
    const Node& node = nodes[static_cast<size_t>(i)];
    if (instant < trace_.events[node.event].end()) {
      found.push_back(node.event);
    }
    i = node.parent;
  }
  return found;
}

}  // namespace shardlens::analysis
