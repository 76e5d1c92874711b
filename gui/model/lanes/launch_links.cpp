#include "gui/model/lanes/launch_links.h"

#include <algorithm>

#include "profiler/analysis/events/sort_runs.h"

namespace shardlens::gui {

using analysis::DeviceEvent;
using analysis::Timeline;

// A stream's events are mostly in the order of their launches.
LaunchLinks::LaunchLinks(const trace::Trace& trace, const Timeline& timeline) {
  const std::vector<DeviceEvent>& all = timeline.device_events;
  std::vector<std::vector<uint32_t>> streams(trace.tracks.size());
  for (uint32_t i = 0; i < all.size(); ++i) {
    if (all[i].launch != trace::kNoIndex) {
      streams[timeline.place(all[i]).track].push_back(i);
    }
  }
  for (const std::vector<uint32_t>& stream : streams) {
    by_launch_.insert(by_launch_.end(), stream.begin(), stream.end());
  }
  by_launch_.shrink_to_fit();
  analysis::sort_runs(by_launch_, [&all](uint32_t a, uint32_t b) {
    return all[a].launch != all[b].launch ? all[a].launch < all[b].launch : a < b;
  });
}

std::optional<size_t> LaunchLinks::first_of(const Timeline& timeline, uint32_t call) const {
  const auto found = std::lower_bound(by_launch_.begin(), by_launch_.end(), call,
                                      [&timeline](uint32_t position, uint32_t of) {
                                        return timeline.device_events[position].launch < of;
                                      });
  return found == by_launch_.end() || timeline.device_events[*found].launch != call
             ? std::nullopt
             : std::optional<size_t>(*found);
}

std::optional<size_t> device_event_of(const trace::Trace& trace,
                                      const Timeline& timeline,
                                      uint32_t event) {
  const std::vector<DeviceEvent>& all = timeline.device_events;
  const Nanoseconds start = trace.events[event].start;
  const auto starts_before = [](const DeviceEvent& e, Nanoseconds t) { return e.when.start < t; };
  auto found = std::lower_bound(all.begin(), all.end(), start, starts_before);
  while (found != all.end() && found->event != event && found->when.start == start) {
    ++found;
  }
  return found == all.end() || found->event != event
             ? std::nullopt
             : std::optional(static_cast<size_t>(found - all.begin()));
}

}  // namespace shardlens::gui
