#pragma once

#include "profiler/analysis/timeline/timeline.h"
#include "sim/calibrate/launched_kernels.h"
#include "sim/calibrate/observation.h"

namespace shardlens::sim {

// Adds an interval of the training loop's own time to what is outside the step's plan.
//
// On the host its exposed communication is counted apart, the gradient norm's too. A device
// continues with work that was launched before, so there only the time in which it is idle, and
// kernels launched in this interval, are the loop's.
void add_outside(const analysis::Timeline& timeline,
                 const LaunchedKernels& kernels,
                 HostMode host,
                 const analysis::Interval& when,
                 ObservedStep& step);

}  // namespace shardlens::sim
