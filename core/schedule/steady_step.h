#pragma once

#include <memory>

#include "core/schedule/planned.h"
#include "core/schedule/workload_outline.h"

namespace shardlens::schedule {

// Computes the third planned_step() of a plan for several numbers of microbatches, for callers that
// plan many steps. One outline serves all plans that run the same operators, and a schedule that
// has reached its steady state continues from there. Operators that follow each other are one item
// of the order.
//
//   SteadySteps steps(workload, outline, plan);
//   const PlannedStep one = steps.step(1, true), four = steps.step(4, true);
//
// [Note: Steady] The state of sharded units after a step does not depend on its number of
// microbatches, so the steps before the third are run with one. FSDP2's second step is equal to its
// third; FSDP1 records the order of its units in the first. Only the generations of buffers and the
// ids of the limiter's events differ from the third step. The buckets of replicated units change in
// the first steps, so plans with such units always run three full steps.
//
// Ownership  refers to its three arguments, which must outlive it.
// Threads    not thread-safe.
class SteadySteps {
 public:
  SteadySteps(const plan::Workload& workload,
              const WorkloadOutline& outline,
              const plan::ResolvedPlan& plan);
  ~SteadySteps();
  SteadySteps(const SteadySteps&) = delete;
  SteadySteps& operator=(const SteadySteps&) = delete;

  // `storage`: a step that is no longer needed; its memory is reused.
  [[nodiscard]] PlannedStep step(int accumulate,
                                 bool sync_every_microbatch,
                                 PlannedStep storage = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardlens::schedule
