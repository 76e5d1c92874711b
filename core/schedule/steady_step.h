#pragma once

#include "core/schedule/planned.h"
#include "core/schedule/workload_outline.h"

namespace shardlens::schedule {

// The third planned_step(), for who plans many: the outline is made once for all that run the same
// operators, and `storage`, of a step that is needed no more, is used again.
//
// [Note: Steady] What a step of sharded units leaves behind for the next one does not hang on its
// microbatches, so those before it are run with one. FSDP2's second step is like its third; FSDP1
// learns the order of its units in the first. Only the generations of buffers, and the numbers of
// the limiter's events, are lower than the third step's. The buckets of replicated units change in
// the first steps: these run whole.
[[nodiscard]] PlannedStep steady_step(const plan::Workload& workload,
                                      const WorkloadOutline& outline,
                                      const plan::ResolvedPlan& plan,
                                      int accumulate,
                                      bool sync_every_microbatch,
                                      PlannedStep storage = {});

}  // namespace shardlens::schedule
