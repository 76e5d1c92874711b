#pragma once

#include <vector>

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::sim {

// The device's work, sorted by the time at which the host launched it.
class LaunchedKernels {
 public:
  LaunchedKernels(const trace::Trace& trace, const analysis::Timeline& timeline);

  struct Sum {
    int count = 0;
    Nanoseconds duration = 0;
    double beside = 0;  // share of `duration` with concurrent communication
  };
  // Sum over the work of one nature that was launched in the interval.
  [[nodiscard]] Sum within(const analysis::Interval& when, analysis::Nature nature) const;

 private:
  struct Kernel {
    Nanoseconds launched = 0;
    analysis::Nature nature = analysis::Nature::kCompute;
    analysis::Interval when;
  };
  const analysis::Timeline& timeline_;
  std::vector<Kernel> kernels_;  // by launch
};

}  // namespace shardlens::sim
