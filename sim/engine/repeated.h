#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/schedule/planned/planned.h"

namespace shardlens::sim {

// The microbatches of a planned step from the second one on, if all of them do the same.
//
// [Note: Separate microbatches] Suppose that, when compute reaches the end of a microbatch, nothing
// of that microbatch is left on the other streams, and their first work of the next microbatch
// waits for compute. Then the time that the next one takes depends only on what it does and on when
// its work is issued, and on the latter only if something has to wait for the host. So if the first
// microbatch ends like this, the second one too, nothing of the second one and of what follows has
// to wait for the host, and the host is faster than the device, then each microbatch that repeats
// the second one takes as long as the second one, and two microbatches are enough to know a step of
// any number of them. With FSDP2 this is the usual case: the end of backward waits for all
// reductions, and the first all-gather waits for compute.
struct RepeatedMicrobatches {
  size_t begin = 0, end = 0;  // items of the second microbatch in PlannedStep::order
  size_t tail = 0;            // the first item after the last microbatch
  // Of microbatches that repeat the second one; 0 if it is the last, but more would repeat it.
  int64_t count = 0;
};

// nullopt: there are fewer than three microbatches, and PlannedStep::tail is not known; or they
// differ.
// Complexity  linear in the items of the step.
[[nodiscard]] std::optional<RepeatedMicrobatches> repeated_microbatches(
    const schedule::PlannedStep& step);

}  // namespace shardlens::sim
