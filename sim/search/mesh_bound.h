#pragma once

#include "core/base/units.h"
#include "sim/search/candidates.h"
#include "sim/search/evaluator.h"

namespace shardlens::sim {

// A lower bound of a step's time.
struct LeastStep {
  Nanoseconds duration = 0;
  Bytes reserved = 0;  // of memory
};

// Lower bounds of the steps of all plans of FSDP2 with the candidate's checkpoints, mesh and
// microbatches, found without a simulation. They are for the candidate's units, and for smaller
// ones, whose collectives take no less time together.
//
// [Note: Bounds of a mesh] Time: operators run one after the other, and so does communication that
// compute waits for where it is issued, as that of tensor parallelism: it cannot be hidden. At the
// same time the collectives of each communicator run one after the other, each unit gathered once
// in a microbatch. Collectives that share links, and operators that share a GPU with collectives,
// only take longer. The host's part of an offloaded optimizer comes after them. Memory: when
// forward ends, shards, optimizer states, gradients of earlier microbatches and all that is saved
// for backward exist.
//
// Errors  InputError as Evaluator::evaluate().
[[nodiscard]] LeastStep least_step(Evaluator& evaluator, const Candidate& candidate);

}  // namespace shardlens::sim
