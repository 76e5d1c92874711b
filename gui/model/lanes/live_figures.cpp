#include "gui/model/lanes/live_figures.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace shardlens::gui {

using analysis::Interval;
using analysis::IntervalSet;

PrefixSums::PrefixSums(const IntervalSet& set) : table_(set), size_(set.size()) {
  sum();
}

PrefixSums::PrefixSums(const ItemTable& table, std::vector<uint32_t> positions)
    : table_(table), positions_(std::move(positions)), size_(positions_.size()) {
  positions_.shrink_to_fit();
  sum();
}

void PrefixSums::sum() {
  sums_.reserve((size_ + kStride - 1) / kStride);
  Nanoseconds sum = 0;
  for (size_t i = 0; i < size_; ++i) {
    if (i % kStride == 0) {
      sums_.push_back(sum);
    }
    const LaneItem item = at(i);
    sum += item.end - item.start;
  }
}

Nanoseconds PrefixSums::before(Nanoseconds instant) const {
  const auto all = std::views::iota(size_t{0}, size_);
  const size_t after = *std::ranges::partition_point(
      all, [this, instant](size_t i) { return at(i).start <= instant; });
  if (after == 0) {
    return 0;
  }
  const size_t last = after - 1;
  Nanoseconds sum = sums_[last / kStride];
  for (size_t i = last / kStride * kStride; i < last; ++i) {
    const LaneItem item = at(i);
    sum += item.end - item.start;
  }
  const LaneItem item = at(last);
  return sum + std::min(instant, item.end) - item.start;
}

Nanoseconds PrefixSums::within(const Interval& window) const {
  return size_ == 0 || window.end <= window.start ? 0 : before(window.end) - before(window.start);
}

LiveFigures::LiveFigures(const analysis::Timeline& timeline, const analysis::Partition& partition)
    : timeline_(timeline),
      compute_(timeline.compute),
      communication_(timeline.communication),
      overlap_(partition.overlap()),
      exposed_comm_(partition.exposed_comm()),
      exposed_copy_(partition.exposed_copy()) {
  const std::vector<analysis::Partition::Owned>& parts = partition.exposed_by_collective();
  std::map<std::optional<CollectiveKind>, std::vector<uint32_t>> kinds;
  for (uint32_t i = 0; i < parts.size(); ++i) {
    kinds[timeline.collectives[parts[i].collective].kind].push_back(i);
  }
  for (auto& [kind, positions] : kinds) {
    exposed_sums_.emplace(kind, PrefixSums(ItemTable(parts), std::move(positions)));
  }
}

analysis::WindowFigures LiveFigures::within(const Interval& window) const {
  analysis::WindowFigures f;
  Nanoseconds length = 0;
  for (const Interval& part : analysis::clip(timeline_.span, window)) {
    length += part.length();
    f.compute += compute_.within(part);
    f.comm += communication_.within(part);
    f.overlap += overlap_.within(part);
    f.exposed_comm += exposed_comm_.within(part);
    f.exposed_copy += exposed_copy_.within(part);
    for (const auto& [kind, sums] : exposed_sums_) {
      (kind ? f.collectives[*kind] : f.unknown).exposed += sums.within(part);
    }
  }
  f.idle = length - f.compute - f.exposed_comm - f.exposed_copy;
  return f;
}

StepFigures LiveFigures::within(const analysis::IntervalSet& windows) const {
  StepFigures sum;
  for (const Interval& window : windows) {
    const StepFigures part = within(window);
    sum.compute += part.compute;
    sum.exposed_comm += part.exposed_comm;
    sum.exposed_copy += part.exposed_copy;
    sum.idle += part.idle;
    sum.comm += part.comm;
    sum.overlap += part.overlap;
  }
  return sum;
}

}  // namespace shardlens::gui
