#pragma once

#include <cstddef>

#include "core/schedule/planned/planned.h"

namespace shardlens::schedule {

// A place in the order of a step: how many hooks, actions and items come before it.
struct PlannedPlace {
  size_t hooks = 0, actions = 0, items = 0;
};

// A step of two microbatches, whose second one is what any further one does.
struct TwoMicrobatches {
  PlannedStep step;
  PlannedPlace second, tail;  // where the second microbatch begins, and what follows it
};

// The step with `microbatches`, at least 1. `storage`: a step that is no longer needed; its memory
// is reused.
[[nodiscard]] PlannedStep with_microbatches(const TwoMicrobatches& two,
                                            int microbatches,
                                            PlannedStep storage);

}  // namespace shardlens::schedule
