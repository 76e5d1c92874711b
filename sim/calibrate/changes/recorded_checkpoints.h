#pragma once

#include <string>

#include "core/plan/resolved_plan.h"
#include "core/workload/workload.h"

namespace shardlens::sim {

// A recorded pass with the activation checkpoints of another plan of the same modules; `plan` may
// divide them into other units. `source`: the run, for errors.
//
// [Note: Checkpoints of a recorded pass] What a unit's hooks are around is the forward of its
// module. Where a checkpoint is added, that forward runs again before its backward, up to the last
// operator that saves a tensor, as PyTorch's checkpoints do, which stop early. An operator that
// only saves what it takes does not run again itself. The first forward then keeps the input of the
// module, which is the largest operand of its first operator; the rest of what it kept is saved
// again. Where a checkpoint is removed, what the trace shows to run again is left out, and what it
// saved is kept from forward on. Of a unit of several modules the hooks are around all of them. If
// its forward runs the same operators once for each, every module has its turn of them, and an
// equal part of what the unit keeps and of its backward; the checkpoints that such a unit had are
// removed together.
//
// Errors  InputError if a module with another checkpoint is no unit of the recorded plan, is in a
// unit with modules that run other operators, or communicates within its forward, and if the run
// does not say what the modules keep.
[[nodiscard]] plan::Workload with_checkpoints(const plan::Workload& recorded,
                                              const plan::ResolvedPlan& recorded_plan,
                                              const plan::ResolvedPlan& plan,
                                              const std::string& source);

}  // namespace shardlens::sim
