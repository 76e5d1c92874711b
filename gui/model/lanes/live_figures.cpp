#include "gui/model/lanes/live_figures.h"

#include <algorithm>
#include <utility>

namespace shardlens::gui {

using analysis::Interval;
using analysis::IntervalSet;

PrefixSums::PrefixSums(const IntervalSet& set) : set_(&set) {
  sums_.reserve(set.size());
  Nanoseconds sum = 0;
  for (const Interval& interval : set) {
    sums_.push_back(sum);
    sum += interval.length();
  }
}

Nanoseconds PrefixSums::before(Nanoseconds instant) const {
  const auto after = std::upper_bound(set_->begin(), set_->end(), instant,
                                      [](Nanoseconds t, const Interval& i) { return t < i.start; });
  if (after == set_->begin()) {
    return 0;
  }
  const auto last = static_cast<size_t>(after - set_->begin()) - 1;
  return sums_[last] + std::min(instant, (*set_)[last].end) - (*set_)[last].start;
}

Nanoseconds PrefixSums::within(const Interval& window) const {
  return set_ == nullptr || window.end <= window.start ? 0
                                                       : before(window.end) - before(window.start);
}

LiveFigures::LiveFigures(const analysis::Timeline& timeline, const analysis::Partition& partition)
    : timeline_(timeline),
      compute_(timeline.compute),
      communication_(timeline.communication),
      overlap_(partition.overlap()),
      exposed_comm_(partition.exposed_comm()),
      exposed_copy_(partition.exposed_copy()) {
  std::map<std::optional<CollectiveKind>, analysis::UnionBuilder> kinds;
  for (const analysis::Partition::Owned& part : partition.exposed_by_collective()) {
    kinds[timeline.collectives[part.collective].kind].add(part.when);
  }
  for (auto& [kind, intervals] : kinds) {
    const IntervalSet& set = exposed_[kind] = intervals.take();
    exposed_sums_.emplace(kind, PrefixSums(set));
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
