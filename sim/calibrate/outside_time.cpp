#include "sim/calibrate/outside_time.h"

#include <algorithm>

#include "profiler/analysis/events/intervals.h"

namespace shardlens::sim {
namespace {

using analysis::Interval;

// Time of the gradient norm's collectives within an interval.
Nanoseconds norm_within(const analysis::Timeline& timeline, const Interval& when) {
  Nanoseconds out = 0;
  for (const analysis::Collective& each : timeline.collectives) {
    if (each.section == trace::Section::kClip) {
      out += std::max<Nanoseconds>(
          0, std::min(each.when.end, when.end) - std::max(each.when.start, when.start));
    }
  }
  return out;
}

}  // namespace

OutsideTime::OutsideTime(const analysis::Timeline& timeline, const LaunchedKernels& kernels)
    : timeline_(timeline),
      kernels_(kernels),
      running_(analysis::unite(timeline.communication, timeline.compute)),
      busy_(analysis::unite(running_, timeline.copy)) {}

void OutsideTime::add(HostMode host, const Interval& when, ObservedStep& step) const {
  if (when.end <= when.start) {
    return;
  }
  if (host == HostMode::kCompute) {
    const Nanoseconds exposed =
        analysis::length_within(running_, when) - analysis::length_within(timeline_.compute, when);
    const Nanoseconds norm = std::min(exposed, norm_within(timeline_, when));
    step.norm_communication += norm;
    step.outside_communication += exposed - norm;
    step.outside += when.length() - exposed;
    return;
  }
  step.outside += when.length() - analysis::length_within(busy_, when) +
                  kernels_.within(when, analysis::Nature::kCompute).duration;
}

}  // namespace shardlens::sim
