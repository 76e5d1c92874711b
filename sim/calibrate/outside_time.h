#pragma once

#include "profiler/analysis/timeline/timeline.h"
#include "sim/calibrate/launched_kernels.h"
#include "sim/calibrate/observation.h"

namespace shardlens::sim {

// The training loop's own time, which is outside the step's plan.
//
// On the host its exposed communication is counted apart, the gradient norm's too. A device
// continues with work that was launched before, so there only the time in which it is idle, and
// kernels launched in an interval, are the loop's.
//
// Ownership  the arguments must outlive it.
class OutsideTime {
 public:
  OutsideTime(const analysis::Timeline& timeline, const LaunchedKernels& kernels);

  // Adds an interval of it to the step.
  void add(HostMode host, const analysis::Interval& when, ObservedStep& step) const;

 private:
  const analysis::Timeline& timeline_;
  const LaunchedKernels& kernels_;
  analysis::IntervalSet running_;  // compute or communication
  analysis::IntervalSet busy_;     // the same, or a copy
  analysis::IntervalSet norms_;    // the gradient norm's collectives
};

}  // namespace shardlens::sim
