#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "sim/cost/cost_model.h"
#include "sim/engine/priced_step.h"

namespace shardlens::sim {

// Work of a step whose time rests on an extrapolation: its size is outside of the sizes that were
// measured for such work.
struct Extrapolation {
  std::string work;          // "all_gather between 4 ranks", "gemm in fp32"
  double beyond = 1;         // of the farthest one: CostModel::beyond()
  Nanoseconds duration = 0;  // of all such work in the step, without other work
  double share = 0;          // `duration` divided by the step's duration

  // Whether it is more than kFar times outside, and its share matters.
  [[nodiscard]] bool is_far() const;
  static constexpr double kFar = 2, kLeastShare = 0.01;
};

// All work of a step with sizes outside of the measured ones, the largest share first; each kind,
// number of ranks and class of operators once. `microbatches`: of its workload in the step.
[[nodiscard]] std::vector<Extrapolation> extrapolations(const PricedStep& step,
                                                        const CostModel& costs,
                                                        int64_t microbatches,
                                                        Nanoseconds duration);

// The far ones as text: "all_gather between 4 ranks at 3.2 x the largest measured size
// (41.0 % of the step)"; several are joined by "; ". "": there is none.
[[nodiscard]] std::string far_extrapolations_text(std::span<const Extrapolation> all);

}  // namespace shardlens::sim
