#include "gui/model/lanes/queue_curve.h"

#include <algorithm>
#include <utility>

namespace shardlens::gui {
namespace {

constexpr size_t kLaunchesPerBlock = 64;

size_t count_until(const std::vector<Nanoseconds>& instants, Nanoseconds instant) {
  return static_cast<size_t>(std::upper_bound(instants.begin(), instants.end(), instant) -
                             instants.begin());
}

}  // namespace

QueueCurve::QueueCurve(analysis::LaunchQueue queue) : queue_(std::move(queue)) {
  queue_.launches.shrink_to_fit();
  queue_.starts.shrink_to_fit();
  const size_t count = queue_.launches.size();
  blocks_.reserve((count + kLaunchesPerBlock - 1) / kLaunchesPerBlock);
  size_t started = 0;
  for (size_t i = 0; i < count; ++i) {
    while (queue_.starts[started] <= queue_.launches[i]) {
      ++started;  // the last event starts after the last launch
    }
    const auto after = static_cast<uint32_t>(i + 1 - started);
    if (i % kLaunchesPerBlock == 0) {
      blocks_.push_back(0);
    }
    blocks_.back() = std::max(blocks_.back(), after);
    highest_ = std::max<int64_t>(highest_, after);
  }
}

uint32_t QueueCurve::walk(size_t first, size_t last) const {
  uint32_t most = 0;
  size_t started = first < last ? count_until(queue_.starts, queue_.launches[first]) : 0;
  for (size_t i = first; i < last; ++i) {
    while (queue_.starts[started] <= queue_.launches[i]) {
      ++started;
    }
    most = std::max(most, static_cast<uint32_t>(i + 1 - started));
  }
  return most;
}

uint32_t QueueCurve::most_after(size_t first, size_t last) const {
  const size_t first_block = (first + kLaunchesPerBlock - 1) / kLaunchesPerBlock;
  const size_t last_block = last / kLaunchesPerBlock;
  if (first_block >= last_block) {
    return walk(first, last);
  }
  uint32_t most = std::max(walk(first, first_block * kLaunchesPerBlock),
                           walk(last_block * kLaunchesPerBlock, last));
  for (size_t block = first_block; block < last_block; ++block) {
    most = std::max(most, blocks_[block]);
  }
  return most;
}

int64_t QueueCurve::most(const analysis::Interval& window) const {
  if (empty() || window.end <= window.start) {
    return 0;
  }
  const size_t before = count_until(queue_.launches, window.start);
  const size_t until = count_until(queue_.launches, window.end - 1);
  const auto begin =
      static_cast<int64_t>(before) - static_cast<int64_t>(count_until(queue_.starts, window.start));
  return std::max(begin, static_cast<int64_t>(most_after(before, until)));
}

}  // namespace shardlens::gui
