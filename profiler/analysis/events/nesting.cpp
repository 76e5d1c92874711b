#include "profiler/analysis/events/nesting.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "profiler/analysis/events/near_search.h"

namespace shardlens::analysis {

using trace::Event;

namespace {

// Sorts events by track only; those of a track keep their order.
void group_by_track(const trace::Trace& trace, std::vector<uint32_t>& list) {
  const auto track = [&](uint32_t i) { return trace.events[i].track; };
  if (std::is_sorted(list.begin(), list.end(),
                     [&](uint32_t a, uint32_t b) { return track(a) < track(b); })) {
    return;
  }
  std::vector<uint32_t> places(trace.tracks.size() + 1);  // by track: where its next event goes
  for (const uint32_t i : list) {
    ++places[track(i) + 1];
  }
  std::partial_sum(places.begin(), places.end(), places.begin());
  std::vector<uint32_t> grouped(list.size());
  for (const uint32_t i : list) {
    grouped[places[track(i)]++] = i;
  }
  list = std::move(grouped);
}

}  // namespace

void sort_by_track_and_start(const trace::Trace& trace, std::vector<uint32_t>& order) {
  const auto before = [&](uint32_t a, uint32_t b) {
    const Event &x = trace.events[a], &y = trace.events[b];
    if (x.start != y.start) {
      return x.start < y.start;
    }
    return x.duration != y.duration ? x.duration > y.duration : a < b;
  };
  group_by_track(trace, order);
  for (auto begin = order.begin(); begin != order.end();) {
    const uint32_t track = trace.events[*begin].track;
    const auto end = std::find_if(begin, order.end(),
                                  [&](uint32_t i) { return trace.events[i].track != track; });
    if (!std::is_sorted(begin, end, before)) {
      std::sort(begin, end, before);
    }
    begin = end;
  }
}

RangeFinder::RangeFinder(const trace::Trace& trace, const std::vector<uint32_t>& order)
    : tracks_(trace.tracks.size()) {
  add(order.size(), [&](size_t i) {
    const Event& event = trace.events[order[i]];
    return EventLists::Range{event.start, event.end(), order[i], event.track, event.name};
  });
}

RangeFinder::RangeFinder(const trace::Trace& trace, const std::vector<EventLists::Range>& order)
    : tracks_(trace.tracks.size()) {
  add(order.size(), [&](size_t i) -> const EventLists::Range& { return order[i]; });
}

template <class RangeAt>
void RangeFinder::add(size_t size, RangeAt range_at) {
  std::vector<int32_t> open;  // positions within the track
  const std::vector<Node>* last = nullptr;
  for (size_t i = 0; i < size; ++i) {
    const EventLists::Range& range = range_at(i);
    std::vector<Node>& nodes = tracks_[range.track];
    if (&nodes != last) {
      open.clear();
      last = &nodes;
    }
    while (!open.empty() && nodes[static_cast<size_t>(open.back())].end <= range.start) {
      open.pop_back();
    }
    nodes.push_back(node(range, nodes, open.empty() ? -1 : open.back()));
    open.push_back(static_cast<int32_t>(nodes.size()) - 1);
  }
}

// [Note: Far links] A range's far link leads to its parent, or past two far links of equal length:
// then the ranges around any range can be passed in O(log depth) links (Myers, "An applicative
// random-access stack", 1983). `latest_end` shows whether a link can be followed: then no range on
// the way contains the instant.
RangeFinder::Node RangeFinder::node(const EventLists::Range& range,
                                    const std::vector<Node>& nodes,
                                    int32_t parent) {
  Node made{range.event, parent, 0, -1, range.start, range.end, range.end};
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
  near = partition_near(nodes, near, [&](const Node& node) { return node.start <= instant; });
  auto i = static_cast<int32_t>(near) - 1;
  while (i >= 0) {
    const Node& node = nodes[static_cast<size_t>(i)];
    if (instant < node.end) {
      return node.event;
    }
    i = node.latest_end <= instant ? node.far : node.parent;
  }
  return std::nullopt;
}

}  // namespace shardlens::analysis
