#pragma once

#include "core/model/model_config.h"
#include "core/plan/resolved_plan.h"
#include "core/workload/step_settings.h"
#include "core/workload/workload.h"

namespace shardlens::plan {

// The operators that given.program runs in a training step (of one microbatch, with the
// optimizer in fp32 at the end) and the hooks of `plan` between them.
//
// Forward     modules in the order in which forward calls them; a unit's kPreForward before its
//             first module, its kPostForward after its last.
// Backward    the forward in reverse order, because autograd runs the newest node first:
//             kPreBackward in place of kPostForward; kGradsReady in place of kPreForward (where a
//             unit's views are made), only for units that own parameters.
// Operators   GEMMs have the shapes of the aten::mm and aten::addmm calls (activations flattened to
//             batch·seq rows). Products of experts are one operator for all experts of a layer:
//             batch = experts, m = the rows of each if all are chosen equally often. `flops` counts
//             the arithmetic; for attention without a window it counts the full matrix of scores,
//             as torch's FlopCounterMode does. `saved` counts each tensor that
//             autograd saves once, at the first operator that saves it.
// Checkpoints plan.checkpointed_modules: their forward saves only its input, counted in `saved` of
//             its first operator. Backward runs the forward again, with the hooks of its units
//             (`recompute`), before the backward of its last operator that saves a tensor. The
//             recomputation ends with the operator before that one, as PyTorch's non-reentrant
//             checkpoint stops early. The tensors that the first forward did not save are then in
//             `saved` of the recomputed operators. A checkpoint inside another has no effect.
// Errors      InputError if batch or seq is not positive, seq is missing or exceeds the model's
//             positions, every parameter is frozen, or the program has no such model.
[[nodiscard]] Workload step_workload(const ModelConfig& config,
                                     const ResolvedPlan& plan,
                                     const StepSettings& given);

}  // namespace shardlens::plan
