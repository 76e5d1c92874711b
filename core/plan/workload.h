#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/hook.h"
#include "core/base/units.h"
#include "core/plan/resolved_plan.h"
#include "core/plan/step_settings.h"

namespace shardlens::plan {

// kRecompute: a forward operator that runs again in backward (activation checkpointing).
enum class Phase : uint8_t { kForward, kLoss, kBackward, kOptimizer, kRecompute };
enum class OperatorKind : uint8_t {
  kGemm,
  kAttention,
  kEmbedding,
  kNorm,
  kElementwise,
  kLoss,
  kOptimizer
};

// One operator of a step on one rank.
struct Operator {
  OperatorKind kind = OperatorKind::kElementwise;
  Phase phase = Phase::kForward;
  UnitId unit = 0;
  std::string name;                        // as RecordFunction names it: "aten::mm", "aten::addmm",
                                           // "aten::scaled_dot_product_attention", …
  std::string module;                      // FQN of the module that runs it
  int64_t batch = 1, m = 0, n = 0, k = 0;  // kGemm: batch × [m,k]·[k,n]. kAttention: batch =
                                           // B·heads, m = query, n = key tokens, k = head_dim
  DType dtype = DType::kF32;
  int64_t flops = 0;
  Bytes read = 0, written = 0;
  Bytes saved = 0;  // kept for backward from here on
  // Index of the forward operator that it differentiates (kBackward) or repeats (kRecompute).
  int32_t forward = -1;
  friend bool operator==(const Operator&, const Operator&) = default;
};

struct WorkloadItem {
  enum class Kind : uint8_t { kHook, kOperator };
  Kind kind = Kind::kOperator;
  uint32_t index = 0;  // into hooks or operators
  friend bool operator==(const WorkloadItem&, const WorkloadItem&) = default;
};

// What one rank runs in one step, in order, with fresh views (backward visits units in reverse
// order of their forwards).
struct Workload {
  int64_t batch = 0, seq = 0;
  std::vector<Operator> operators;
  std::vector<HookEvent> hooks;
  std::vector<WorkloadItem> order;
  friend bool operator==(const Workload&, const Workload&) = default;
};

// The operators that the models of core/models run in a training step (of one microbatch, with the
// optimizer in fp32 at the end) and the hooks of `plan` around them.
//
// Forward     modules in the order in which forward calls them; a unit's kPreForward before its
//             first module, its kPostForward after its last.
// Backward    forward backwards, because autograd runs the newest node first: kPreBackward where
//             kPostForward was, kGradsReady where kPreForward was (a unit's views are made there),
//             only for units that own parameters.
// Operators   GEMMs have the shapes of the aten::mm and aten::addmm calls themselves (activations
//             flattened to batch·seq rows). `flops` are those of the arithmetic; attention counts
//             the whole square, as torch's FlopCounterMode does. `saved` counts each kept tensor
//             once, at the first operator that keeps it.
// Checkpoints of plan.checkpointed_modules: their forward keeps its input alone, `saved` of its
//             first operator. Backward runs it again, with the hooks of the units in it
//             (`recompute`), before the gradient of the last of its operators that keeps something,
//             and only up to that one, as PyTorch's non-reentrant checkpoint stops early. What a
//             forward would have kept is then `saved` of the operator that makes it again. A
//             checkpoint inside another adds nothing.
// Errors      InputError when batch or seq is not positive or missing, seq exceeds the model's
//             positions, or every parameter is frozen.
[[nodiscard]] Workload step_workload(const ModelConfig& config,
                                     const ResolvedPlan& plan,
                                     const StepSettings& settings);
// workload.json, version 1; parse_workload(to_json(w)) == w. Errors: InputError with JSON pointer.
[[nodiscard]] std::string to_json(const Workload& workload, const ResolvedPlan& plan);
[[nodiscard]] Workload parse_workload(std::string_view json, const std::string& source);

}  // namespace shardlens::plan
