#include "profiler/analysis/events/nesting.h"

namespace shardlens::analysis {

using trace::Event;

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
    nodes.push_back({i, open.empty() ? -1 : open.back()});
    open.push_back(static_cast<int32_t>(nodes.size()) - 1);
  }
}

template <class Visit>
void RangeFinder::visit_around(uint32_t track, Nanoseconds instant, Visit visit) const {
  if (track >= tracks_.size()) {
    return;
  }
  const std::vector<Node>& nodes = tracks_[track];
  const auto after = std::upper_bound(
      nodes.begin(), nodes.end(), instant,
      [&](Nanoseconds t, const Node& node) { return t < trace_.events[node.event].start; });
  auto i = static_cast<int32_t>(after - nodes.begin()) - 1;
  while (i >= 0) {
    const Node& node = nodes[static_cast<size_t>(i)];
    if (instant < trace_.events[node.event].end() && !visit(node.event)) {
      return;
    }
    i = node.parent;
  }
}

std::vector<uint32_t> RangeFinder::around(uint32_t track, Nanoseconds instant) const {
  std::vector<uint32_t> found;
  visit_around(track, instant, [&](uint32_t event) {
    found.push_back(event);
    return true;
  });
  return found;
}

bool RangeFinder::any_around(uint32_t track, Nanoseconds instant) const {
  bool found = false;
  visit_around(track, instant, [&](uint32_t) {
    found = true;
    return false;
  });
  return found;
}

}  // namespace shardlens::analysis
