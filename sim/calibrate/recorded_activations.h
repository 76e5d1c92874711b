#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "core/plan/resolved_plan.h"
#include "core/workload/workload.h"

namespace shardlens::sim {

// What a module's forward keeps for backward in a microbatch, counted by shardlens.record.
struct RecordedActivation {
  std::string module;
  Bytes saved = 0;       // kept from forward to backward
  Bytes recomputed = 0;  // kept again when a checkpoint runs the module's forward again
};

// "activations" of run.json, in the order of forward; empty if it has none that can be read.
[[nodiscard]] std::vector<RecordedActivation> recorded_activations(const std::string& run_json);

// Adds the activations to the operators of a recorded pass.
//
// [Note: Recorded activations] A trace shows the unit of an operator, but not what autograd keeps
// for it. The recorder's hooks of saved tensors know the module. So the modules of a unit that ran
// one after the other are one amount: it is saved by the last operator of that run of the unit's
// forward, and freed in three equal parts through the backward of the run. What a checkpoint saves
// again is saved by the last operator that runs again, and freed in the same way. Several
// checkpointed modules in one unit have a part of the run each, if each runs again before a
// backward of its own. In a trace whose operators do not say that they run again
// (recomputed_operators()) it is there from the first operator of that backward on, and shrinks
// evenly to its last. What belongs to no run of its unit at its place, such as a checkpoint's input
// that the module around it keeps, is added to the next run.
void add_activations(const std::vector<RecordedActivation>& activations,
                     const plan::ResolvedPlan& plan,
                     plan::Workload& workload);

// The same for a pass under DDP, whose operators have no units: see [Note: Order of gradients]
// (recovered_ddp.cpp). Activations are spread over the operators of forward that have a backward,
// in order and by their bytes. `checkpoints`: the modules whose forward runs again, all of whose
// activations are there when their backward begins.
void add_replicated_activations(const std::vector<RecordedActivation>& activations,
                                const std::vector<std::string>& checkpoints,
                                plan::Workload& workload);

}  // namespace shardlens::sim
