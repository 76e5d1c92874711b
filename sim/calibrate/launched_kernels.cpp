#include "sim/calibrate/launched_kernels.h"

#include <algorithm>

namespace shardlens::sim {

LaunchedKernels::LaunchedKernels(const trace::Trace& trace, const analysis::Timeline& timeline)
    : timeline_(timeline) {
  for (const analysis::DeviceEvent& each : timeline.device_events) {
    if (each.launch != trace::kNoIndex) {
      const trace::Event& event = trace.events[each.event];
      kernels_.push_back(
          {trace.events[each.launch].start, each.nature, {event.start, event.end()}});
    }
  }
  std::stable_sort(kernels_.begin(), kernels_.end(),
                   [](const Kernel& a, const Kernel& b) { return a.launched < b.launched; });
}

LaunchedKernels::Sum LaunchedKernels::within(const analysis::Interval& when,
                                             analysis::Nature nature) const {
  Sum out;
  Nanoseconds beside = 0;
  auto it = std::lower_bound(kernels_.begin(), kernels_.end(), when.start,
                             [](const Kernel& k, Nanoseconds t) { return k.launched < t; });
  for (; it != kernels_.end() && it->launched < when.end; ++it) {
    if (it->nature == nature) {
      ++out.count;
      out.duration += it->when.length();
      beside += analysis::length_within(timeline_.communication, it->when);
    }
  }
  if (out.duration > 0) {
    out.beside = static_cast<double>(beside) / static_cast<double>(out.duration);
  }
  return out;
}

}  // namespace shardlens::sim
