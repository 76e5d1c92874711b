#pragma once

#include <memory>

#include "core/schedule/planned.h"
#include "core/schedule/workload_outline.h"

namespace shardlens::schedule {

// The third planned_step() of a plan for any number of microbatches, for who plans many: the
// outline is made once for all that run the same operators, and a schedule that has come to its
// steady state goes on from there.
//
//   SteadySteps steps(workload, outline, plan);
//   const PlannedStep one = steps.step(1, true), four = steps.step(4, true);
//
// [Note: Steady] What a step of sharded units leaves behind for the next one does not hang on its
// microbatches, so those before it are run with one. FSDP2's second step is like its third; FSDP1
// learns the order of its units in the first. Only the generations of buffers, and the numbers of
// the limiter's events, are others than the third step's. The buckets of replicated units change in
// the first steps: these run whole, every time.
//
// Ownership  refers to its three arguments.
// Threads    one thread's.
class SteadySteps {
 public:
  SteadySteps(const plan::Workload& workload,
              const WorkloadOutline& outline,
              const plan::ResolvedPlan& plan);
  ~SteadySteps();
  SteadySteps(const SteadySteps&) = delete;
  SteadySteps& operator=(const SteadySteps&) = delete;

  // `storage`, of a step that is needed no more, is used again.
  [[nodiscard]] PlannedStep step(int accumulate,
                                 bool sync_every_microbatch,
                                 PlannedStep storage = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardlens::schedule
