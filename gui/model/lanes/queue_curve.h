#pragma once

#include <cstdint>
#include <vector>

#include "gui/model/lanes/launch_links.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::gui {

// How many events the device had in its queue at any time: launched, but not yet started. Of the
// events of one call, such as the launch of a CUDA graph, only the first is in it.
//
// Ownership   the timeline must outlive this object and not move.
// Memory      8 bytes per launch.
// Complexity  most() is logarithmic, plus a 64th of the launches in the window.
class QueueCurve {
 public:
  QueueCurve() = default;
  QueueCurve(const analysis::Timeline& timeline, const LaunchLinks& links);
  [[nodiscard]] bool empty() const { return launches_.empty(); }
  [[nodiscard]] int64_t highest() const { return highest_; }
  // The largest number at any instant of the window.
  [[nodiscard]] int64_t most(const analysis::Interval& window) const;

 private:
  // When the launch and the start with this number happened.
  [[nodiscard]] Nanoseconds launch(size_t i) const { return (*events_)[launches_[i]].launched; }
  [[nodiscard]] Nanoseconds start(size_t i) const { return (*events_)[starts_[i]].when.start; }
  [[nodiscard]] size_t launched_until(Nanoseconds instant) const;
  [[nodiscard]] size_t started_until(Nanoseconds instant) const;
  // The largest number just after one of the launches first to last-1.
  [[nodiscard]] uint32_t most_after(size_t first, size_t last) const;
  // The same, launch by launch.
  [[nodiscard]] uint32_t walk(size_t first, size_t last) const;

  const std::vector<analysis::DeviceEvent>* events_ = nullptr;  // nullptr: none are in the queue
  std::vector<uint32_t> launches_, starts_;  // the same positions in *events_, sorted by each
  std::vector<uint32_t> blocks_;             // the largest of each block of launches
  int64_t highest_ = 0;
};

}  // namespace shardlens::gui
