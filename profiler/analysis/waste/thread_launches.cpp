#include "profiler/analysis/waste/thread_launches.h"

#include <algorithm>

namespace shardlens::analysis {

const std::vector<ThreadLaunches::Launch>& ThreadLaunches::of(uint32_t track) const {
  if (launches_.empty()) {
    launches_.resize(trace_.tracks.size());
    for (const DeviceEvent& each : timeline_.device_events) {
      if (each.launch != trace::kNoIndex) {
        launches_[timeline_.place(each).thread].push_back({each.launched, &each});
      }
    }
    for (auto& thread : launches_) {
      std::stable_sort(thread.begin(), thread.end(),
                       [](const Launch& a, const Launch& b) { return a.time < b.time; });
    }
  }
  return launches_[track];
}

std::vector<const DeviceEvent*> ThreadLaunches::within(const trace::Event& range) const {
  const std::vector<Launch>& thread = of(range.track);
  std::vector<const DeviceEvent*> out;
  for (auto it = std::lower_bound(thread.begin(), thread.end(), range.start,
                                  [](const Launch&l, Nanoseconds t) { return l.time < t; });
       it != thread.end() && it->time < range.end(); ++it) {
    out.push_back(it->event);
  }
  return out;
}

const ThreadLaunches::Launch* ThreadLaunches::last_before(uint32_t track,
                                                          Nanoseconds instant) const {
  const std::vector<Launch>& thread = of(track);
  auto it = std::lower_bound(thread.begin(), thread.end(), instant,
                             [](const Launch& l, Nanoseconds t) { return l.time < t; });
  while (it != thread.begin()) {
    --it;
    if (it->event->nature != Nature::kCommunication) {
      return &*it;
    }
  }
  return nullptr;
}

}  // namespace shardlens::analysis
