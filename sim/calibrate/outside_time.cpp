#include "sim/calibrate/outside_time.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "profiler/analysis/events/intervals.h"

namespace shardlens::sim {
namespace {

using analysis::Interval;
using analysis::IntervalSet;

// When the gradient norm's collectives ran.
IntervalSet norms_of(const analysis::Timeline& timeline) {
  std::vector<Interval> each;
  for (const analysis::Collective& collective : timeline.collectives) {
    if (collective.section == trace::Section::kClip) {
      each.push_back(collective.when);
    }
  }
  return analysis::union_of(std::move(each));
}

}  // namespace

OutsideTime::OutsideTime(const analysis::Timeline& timeline, const LaunchedKernels& kernels)
    : timeline_(timeline),
      kernels_(kernels),
      running_(analysis::unite(timeline.communication, timeline.compute)),
      busy_(analysis::unite(running_, timeline.copy)),
      norms_(norms_of(timeline)) {}

void OutsideTime::add(HostMode host, const Interval& when, ObservedStep& step) const {
  if (when.end <= when.start) {
    return;
  }
  if (host == HostMode::kCompute) {
    const Nanoseconds exposed =
        analysis::length_within(running_, when) - analysis::length_within(timeline_.compute, when);
    const Nanoseconds norm = std::min(exposed, analysis::length_within(norms_, when));
    step.norm_communication += norm;
    step.outside_communication += exposed - norm;
    step.outside += when.length() - exposed;
    return;
  }
  step.outside += when.length() - analysis::length_within(busy_, when) +
                  kernels_.within(when, analysis::Nature::kCompute).duration;
}

}  // namespace shardlens::sim
