#include "profiler/analysis/events/nesting.h"

#include <algorithm>

#include "profiler/analysis/events/near_search.h"

namespace shardlens::analysis {

using trace::Event;

void sort_by_track_and_start(const trace::Trace& trace, std::vector<uint32_t>& order) {
  const auto before = [&](uint32_t a, uint32_t b) {
    const Event &x = trace.events[a], &y = trace.events[b];
    if (x.track != y.track) {
      return x.track < y.track;
    }
    if (x.start != y.start) {
      return x.start < y.start;
    }
    return x.duration != y.duration ? x.duration > y.duration : a < b;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) {
    std::sort(order.begin(), order.end(), before);
  }
}

RangeFinder::RangeFinder(const trace::Trace& trace, const std::vector<uint32_t>& order)
    : trace_(trace), tracks_(trace.tracks.size()) {
  std::vector<int32_t> open;  // positions within the track
  const std::vector<Node>* last = nullptr;
  for (const uint32_t i : order) {
    const Event& event = trace.events[i];
    std::vector<Node>& nodes = tracks_[event.track];
    if (&nodes != last) {
      open.clear();
      last = &nodes;
    }
    while (!open.empty() &&
           trace.events[nodes[static_cast<size_t>(open.back())].event].end() <= event.start) {
      open.pop_back();
    }
    nodes.push_back(node(event, i, nodes, open.empty() ? -1 : open.back()));
    open.push_back(static_cast<int32_t>(nodes.size()) - 1);
  }
}

// [Note: Far links] A range's far link leads to its parent, or past two far links of equal length:
// then the ranges around any range can be passed in O(log depth) links (Myers, "An applicative
// random-access stack", 1983). `latest_end` shows whether a link can be followed: then no range on
// the way contains the instant.
RangeFinder::Node RangeFinder::node(const Event& event,
                                    uint32_t index,
                                    const std::vector<Node>& nodes,
                                    int32_t parent) {
  Node made{index, parent, 0, -1, event.end()};
  if (parent < 0) {
    return made;
  }
  const Node& around = nodes[static_cast<size_t>(parent)];
  made.depth = around.depth + 1;
  made.far = parent;
  if (around.far >= 0) {
    const Node& next = nodes[static_cast<size_t>(around.far)];
    const int32_t end_depth = next.far < 0 ? -1 : nodes[static_cast<size_t>(next.far)].depth;
    if (around.depth - next.depth == next.depth - end_depth) {
      made.far = next.far;
      made.latest_end = std::max({made.latest_end, around.latest_end, next.latest_end});
    }
  }
  return made;
}

std::optional<uint32_t> RangeFinder::innermost(uint32_t track, Nanoseconds instant) const {
  size_t near = track < tracks_.size() ? tracks_[track].size() / 2 : 0;
  return innermost(track, instant, near);
}

std::optional<uint32_t> RangeFinder::innermost(uint32_t track,
                                               Nanoseconds instant,
                                               size_t& near) const {
  if (track >= tracks_.size()) {
    return std::nullopt;
  }
  const std::vector<Node>& nodes = tracks_[track];
  near = partition_near(
      nodes, near, [&](const Node& node) { return trace_.events[node.event].start <= instant; });
  auto i = static_cast<int32_t>(near) - 1;
  while (i >= 0) {
    const Node& node = nodes[static_cast<size_t>(i)];
    if (instant < trace_.events[node.event].end()) {
      return node.event;
    }
    i = node.latest_end <= instant ? node.far : node.parent;
  }
  return std::nullopt;
}

}  // namespace shardlens::analysis
