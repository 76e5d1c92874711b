#pragma once

#include <vector>

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::sim {

// What ran on the device, by when the host launched it.
class LaunchedKernels {
 public:
  LaunchedKernels(const trace::Trace& trace, const analysis::Timeline& timeline);

  struct Sum {
    int count = 0;
    Nanoseconds duration = 0;
    double beside = 0;  // share of `duration` with communication beside
  };
  // Of those of one nature that were launched in an interval.
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
