#include "profiler/analysis/events/event_lists.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "profiler/analysis/events/sort_runs.h"

namespace shardlens::analysis {

using trace::Category;

namespace {

enum class List : uint8_t { kNone, kAnnotations, kOperators, kDevice, kCalls };

// The lists by category.
std::array<List, trace::kCategoryCount> lists_of_categories() {
  std::array<List, trace::kCategoryCount> out{};
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = trace::is_runtime_call(static_cast<Category>(i)) ? List::kCalls : List::kNone;
  }
  out[static_cast<size_t>(Category::kUserAnnotation)] = List::kAnnotations;
  out[static_cast<size_t>(Category::kCpuOp)] = List::kOperators;
  for (const Category each : {Category::kKernel, Category::kGpuMemcpy, Category::kGpuMemset}) {
    out[static_cast<size_t>(each)] = List::kDevice;
  }
  return out;
}

// Groups a list by track; what is of one track keeps its order.
template <class T>
std::vector<T> by_track(const std::vector<T>& list, size_t tracks) {
  std::vector<uint32_t> places(tracks + 1);  // by track: where its next one goes
  for (const T& each : list) {
    ++places[each.track + 1];
  }
  std::partial_sum(places.begin(), places.end(), places.begin());
  std::vector<T> grouped(list.size());
  for (const T& each : list) {
    grouped[places[each.track]++] = each;
  }
  return grouped;
}

}  // namespace

EventLists::EventLists(const trace::Trace& trace) {
  const auto lists = lists_of_categories();
  // Capacity that is not used takes no memory, but growth is copied.
  operators.reserve(trace.events.size());
  operator_names_.reserve(trace.events.size());
  calls.reserve(trace.events.size() / 2);
  device.reserve(trace.events.size() / 2);
  for (uint32_t i = 0; i < trace.events.size(); ++i) {
    const trace::Event& event = trace.events[i];
    if (event.phase != trace::EventPhase::kComplete) {
      continue;
    }
    switch (lists[static_cast<size_t>(event.category)]) {
      case List::kAnnotations:
        annotations.push_back(i);
        annotation_names_.push_back(event.name);
        ranges.push_back({event.start, event.end(), i, event.track, event.name});
        break;
      case List::kOperators:
        operators.push_back(i);
        operator_names_.push_back(event.name);
        break;
      case List::kDevice:
        device.push_back({event.start, event.track, i});
        break;
      case List::kCalls:
        calls.push_back({event.start, i, event.track, event.correlation, event.name});
        break;
      case List::kNone:
        break;
    }
  }
  sort_device(trace.tracks.size());
  sort_ranges(trace.tracks.size());
}

void EventLists::sort_ranges(size_t tracks) {
  const auto before = [](const Range& a, const Range& b) {
    if (a.track != b.track) {
      return a.track < b.track;
    }
    if (a.start != b.start) {
      return a.start < b.start;
    }
    return a.end != b.end ? a.end > b.end : a.event < b.event;
  };
  if (std::is_sorted(ranges.begin(), ranges.end(), before)) {
    return;
  }
  ranges = by_track(ranges, tracks);
  if (!std::is_sorted(ranges.begin(), ranges.end(), before)) {
    std::sort(ranges.begin(), ranges.end(), before);
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
  std::vector<DeviceStart> grouped = by_track(device, tracks);
  sort_runs(grouped, device, before);
  device.swap(grouped);
}

}  // namespace shardlens::analysis
