#pragma once

#include "core/schedule/action.h"

namespace shardlens::schedule {

// Whether the action reads a unit's gradients for a reduction. Autograd makes one tensor per
// parameter, but a reduction needs all gradients in one tensor. kReduceCopyIn makes this tensor if
// the schedule has one; otherwise this action makes it, on compute.
[[nodiscard]] inline bool reads_gradient(const Action& action) {
  return action.op == Op::kReduceScatter ||
         ((action.op == Op::kAllReduce || action.op == Op::kStoreGrad ||
           action.op == Op::kToHost) &&
          action.buffer.kind == BufferKind::kUnshardedGrad);
}

}  // namespace shardlens::schedule
