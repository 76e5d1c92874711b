#include "gui/model/lanes/queue_curve.h"

#include <algorithm>
#include <utility>

#include "profiler/analysis/events/sort_runs.h"

namespace shardlens::gui {
namespace {

constexpr size_t kLaunchesPerBlock = 64;

}  // namespace

QueueCurve::QueueCurve(const analysis::Timeline& timeline, const LaunchLinks& links)
    : events_(&timeline.device_events) {
  std::vector<bool> queued(events_->size());
  uint32_t last = trace::kNoIndex;  // the launch of the event before
  for (const uint32_t position : links.positions()) {
    const analysis::DeviceEvent& event = (*events_)[position];
    if (std::exchange(last, event.launch) != event.launch && event.launched < event.when.start) {
      launches_.push_back(position);
      queued[position] = true;
    }
  }
  launches_.shrink_to_fit();
  analysis::sort_runs(launches_, [this](uint32_t a, uint32_t b) {
    return (*events_)[a].launched < (*events_)[b].launched;
  });
  starts_.reserve(launches_.size());
  for (uint32_t i = 0; i < queued.size(); ++i) {
    if (queued[i]) {  // the events are sorted by start
      starts_.push_back(i);
    }
  }
  const size_t count = launches_.size();
  blocks_.reserve((count + kLaunchesPerBlock - 1) / kLaunchesPerBlock);
  size_t started = 0;
  for (size_t i = 0; i < count; ++i) {
    while (start(started) <= launch(i)) {
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

size_t QueueCurve::launched_until(Nanoseconds instant) const {
  const auto after = std::ranges::upper_bound(
      launches_, instant, {}, [this](uint32_t event) { return (*events_)[event].launched; });
  return static_cast<size_t>(after - launches_.begin());
}

size_t QueueCurve::started_until(Nanoseconds instant) const {
  const auto after = std::ranges::upper_bound(
      starts_, instant, {}, [this](uint32_t event) { return (*events_)[event].when.start; });
  return static_cast<size_t>(after - starts_.begin());
}

uint32_t QueueCurve::walk(size_t first, size_t last) const {
  uint32_t most = 0;
  size_t started = first < last ? started_until(launch(first)) : 0;
  for (size_t i = first; i < last; ++i) {
    while (start(started) <= launch(i)) {
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
  const size_t before = launched_until(window.start);
  const size_t until = launched_until(window.end - 1);
  const int64_t begin =
      static_cast<int64_t>(before) - static_cast<int64_t>(started_until(window.start));
  return std::max(begin, static_cast<int64_t>(most_after(before, until)));
}

}  // namespace shardlens::gui
