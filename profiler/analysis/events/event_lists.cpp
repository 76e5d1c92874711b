#include "profiler/analysis/events/event_lists.h"

#include <algorithm>
#include <numeric>

#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/events/sort_runs.h"

namespace shardlens::analysis {

using trace::Category;

EventLists::EventLists(const trace::Trace& trace) {
  // Capacity that is not used takes no memory, but growth is copied.
  operators.reserve(trace.events.size());
  operator_names_.reserve(trace.events.size());
  calls.reserve(trace.events.size() / 4);
  device.reserve(trace.events.size() / 4);
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const trace::Event& event = trace.events[i];
    if (event.phase != trace::EventPhase::kComplete) {
      continue;
    }
    switch (event.category) {
      case Category::kUserAnnotation:
        annotations.push_back(i);
        annotation_names_.push_back(event.name);
        break;
      case Category::kCpuOp:
        operators.push_back(i);
        operator_names_.push_back(event.name);
        break;
      case Category::kKernel:
      case Category::kGpuMemcpy:
      case Category::kGpuMemset:
        device.push_back({event.start, event.track, i});
        break;
      default:
        if (trace::is_runtime_call(event.category)) {
          calls.push_back({event.start, i, event.track, event.correlation, event.name});
        }
        break;
    }
  }
  sort_device(trace.tracks.size());
  ranges = annotations;
  sort_by_track_and_start(trace, ranges);
  range_names_.reserve(ranges.size());
  for (const uint32_t i : ranges) {
    range_names_.push_back(trace.events[i].name);
  }
}

// The events of a stream are mostly in order, so streams are merged.
void EventLists::sort_device(size_t tracks) {
  const auto before = [](const DeviceStart& a, const DeviceStart& b) {
    return a.start != b.start ? a.start < b.start : a.event < b.event;
  };
  if (std::is_sorted(device.begin(), device.end(), before)) {
    return;
  }
  std::vector<uint32_t> places(tracks + 1);  // by track: where its next event goes
  for (const DeviceStart& each : device) {
    ++places[each.track + 1];
  }
  std::partial_sum(places.begin(), places.end(), places.begin());
  std::vector<DeviceStart> by_track(device.size());
  for (const DeviceStart& each : device) {
    by_track[places[each.track]++] = each;
  }
  sort_runs(by_track, device, before);
  device.swap(by_track);
}

}  // namespace shardlens::analysis
