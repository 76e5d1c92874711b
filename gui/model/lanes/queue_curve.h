#pragma once

#include <cstdint>
#include <vector>

#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/figures/launch_figures.h"

namespace shardlens::gui {

// How many events the device had in its queue at any time: launched, but not yet started.
//
// Memory      16 bytes per launch.
// Complexity  most() is logarithmic, plus a 64th of the launches in the window.
class QueueCurve {
 public:
  QueueCurve() = default;
  explicit QueueCurve(analysis::LaunchQueue queue);
  [[nodiscard]] bool empty() const { return queue_.launches.empty(); }
  [[nodiscard]] int64_t highest() const { return highest_; }
  // The largest number at any instant of the window.
  [[nodiscard]] int64_t most(const analysis::Interval& window) const;

 private:
  // The largest number just after one of the launches first to last-1.
  [[nodiscard]] uint32_t most_after(size_t first, size_t last) const;
  // The same, launch by launch.
  [[nodiscard]] uint32_t walk(size_t first, size_t last) const;

  analysis::LaunchQueue queue_;
  std::vector<uint32_t> blocks_;  // the largest of each block of launches
  int64_t highest_ = 0;
};

}  // namespace shardlens::gui
