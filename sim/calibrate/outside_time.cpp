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

void add_outside(const analysis::Timeline& timeline,
                 const LaunchedKernels& kernels,
                 HostMode host,
                 const Interval& when,
                 ObservedStep& step) {
  if (when.end <= when.start) {
    return;
  }
  const analysis::IntervalSet running = analysis::unite(timeline.communication, timeline.compute);
  if (host == HostMode::kCompute) {
    const Nanoseconds exposed =
        analysis::length_within(running, when) - analysis::length_within(timeline.compute, when);
    const Nanoseconds norm = std::min(exposed, norm_within(timeline, when));
    step.norm_communication += norm;
    step.outside_communication += exposed - norm;
    step.outside += when.length() - exposed;
    return;
  }
  step.outside += when.length() -
                  analysis::length_within(analysis::unite(running, timeline.copy), when) +
                  kernels.within(when, analysis::Nature::kCompute).duration;
}

}  // namespace shardlens::sim
