#pragma once

#include "core/schedule/action.h"

namespace shardlens::schedule {

// Whether the action is the first to read a unit's gradients. Autograd makes them one by one; what
// reads them wants them in one tensor, which kReduceCopyIn has made where the schedule has it and
// which is made on compute, as part of this action, where it has not.
[[nodiscard]] inline bool reads_gradient(const Action& action) {
  return action.op == Op::kReduceScatter ||
         ((action.op == Op::kAllReduce || action.op == Op::kStoreGrad) &&
          action.buffer.kind == BufferKind::kUnshardedGrad);
}

}  // namespace shardlens::schedule
