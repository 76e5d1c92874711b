#pragma once

#include <memory>

#include "core/schedule/planned/planned.h"
#include "core/schedule/planned/workload_outline.h"

namespace shardlens::schedule {

// Computes the third planned_step() of a plan for several numbers of microbatches, for callers that
// plan many steps. One outline serves all plans that run the same operators, and a schedule that
// has reached its steady state continues from there. Operators that follow each other are one item
// of the order.
//
//   SteadySteps steps(workload, outline, plan);
//   const std::shared_ptr<PlannedStep> one = steps.step(1, true), four = steps.step(4, true);
//
// [Note: Steady] The state of FSDP2's units after a step does not depend on its number of
// microbatches, and its second step is equal to its third. So one step with one microbatch is run
// first or, where a microbatch leaves nothing behind ([Note: Copied microbatches]), only the end of
// its optimizer, and only the generations of buffers and the ids of the limiter's events differ
// from the third step. With FSDP1 the number of frees for which the limiter has not waited yet
// depends on the microbatches of the steps before, and the buckets of replicated units change in
// the first steps. So such plans always run three full steps.
//
// [Note: Copied microbatches] If every microbatch synchronizes gradients, and the plan has no
// settings for the last one, each microbatch leaves FSDP2's units as it found them: nothing is
// gathered, pending or unreduced after a backward, and the limiter forgets its frees at the next
// forward. Only the first one finds the optimizer's event. So a step of any number of microbatches
// is made from one of two, by repeating the second. The copies record the same events.
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

  // `storage`: a step that is no longer needed; its memory is reused. The result may be shared with
  // later calls, which read it.
  [[nodiscard]] std::shared_ptr<PlannedStep> step(int accumulate,
                                                  bool sync_every_microbatch,
                                                  PlannedStep storage = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardlens::schedule
