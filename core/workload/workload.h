#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/collective.h"
#include "core/base/dtype.h"
#include "core/base/hook.h"
#include "core/base/units.h"
#include "core/mesh/mesh.h"
#include "core/plan/resolved_plan.h"
#include "core/workload/step_settings.h"

namespace shardlens::plan {

// kRecompute: a forward operator that runs again in backward (activation checkpointing).
enum class Phase : uint8_t { kForward, kLoss, kBackward, kOptimizer, kRecompute };
enum class OperatorKind : uint8_t {  // decides which measured rates apply
  kGemm,
  kAttention,
  kEmbedding,
  kNorm,
  kElementwise,
  kLoss,
  kOptimizer
};

// Bits of Operator::takes: the gradient that comes to the forward operator, and the output of the
// operator that is `distance` places before this one.
inline constexpr uint32_t kTakesGradient = 1;
inline constexpr uint32_t kTakesSaved = uint32_t{1} << 31;  // only what forward saved
[[nodiscard]] constexpr uint32_t takes_before(uint32_t distance) {
  return uint32_t{1} << distance;
}

// How the host starts an operator's kernels: as an operator of PyTorch; from compiled code, whose
// call begins with the first of them; or as a part of a CUDA graph, which starts with its first.
enum class Launch : uint8_t { kOperator, kKernel, kFirstKernel, kInGraph, kFirstInGraph };

// One operator of a step on one rank.
struct Operator {
  OperatorKind kind = OperatorKind::kElementwise;
  Phase phase = Phase::kForward;
  UnitId unit = 0;
  std::string name;                        // name in RecordFunction: "aten::mm", "aten::addmm",
                                           // "aten::scaled_dot_product_attention", …
  std::string module;                      // FQN of the module that runs it
  int64_t batch = 1, m = 0, n = 0, k = 0;  // kGemm: batch × [m,k]·[k,n]. kAttention: batch =
                                           // B·heads, m = query, n = key tokens, k = head_dim;
                                           // with a window of w keys, n is such that m·n / 2 pairs
                                           // are in it: w·(2 - w/m). Backward of a tied
                                           // kEmbedding: table of m × n
  DType dtype = DType::kF32;
  int64_t flops = 0;
  Bytes read = 0, written = 0;
  Bytes saved = 0;  // bytes that autograd saves here for backward
  // Index of the forward operator that this one differentiates (kBackward) or repeats (kRecompute).
  int32_t forward = -1;
  // kBackward: which tensors it takes, of those that only the backward of `forward` makes. 0: the
  // gradient that comes to `forward`. kLoss: with kTakesGradient its result is a gradient of its
  // unit's parameters, to which parts of the loss that follow add theirs.
  uint32_t takes = 0;
  // kBackward: it also takes the gradient of the residual and adds it to its result, which is the
  // residual's gradient from then on. An operator "aten::add" does so without it.
  bool takes_residual = false;
  // kBackward: gradients of its result's consumers that it adds besides the last one's, as so many
  // operators "aten::add" before it would.
  int32_t sums = 0;
  // kBackward: bytes of what `forward` saved that are freed after this operator; the rest is freed
  // after the last one. kRecompute: bytes of the result of `forward`, which the checkpoint kept, so
  // that this operator only saves.
  Bytes frees = 0;
  // Bytes that it allocates besides its output and what it saves, and frees before it ends.
  Bytes scratch = 0;
  // kAttention: a token attends only to the tokens up to it, so that half of the scores suffice.
  bool causal = true;
  Launch launch = Launch::kOperator;
  // kGemm: the dtype of its inputs and rate, if it is not computed in `dtype`, which is its
  // result's.
  std::optional<MatmulDType> matmul_dtype = std::nullopt;
  friend bool operator==(const Operator&, const Operator&) = default;
};

// Names of PyTorch's operators that have rates of their own.
inline constexpr std::string_view kFlexAttention = "flex_attention",
                                  kEfficientAttention =
                                      "aten::_scaled_dot_product_efficient_attention",
                                  kGroupedProduct = "aten::_grouped_mm";

// Limit of FLOPs and bytes of an operator that is read from a file, far above those of any real
// one. Sums of several operators fit in 64 bits.
inline constexpr int64_t kMostOfOperator = int64_t{1} << 60;
// Limit of batch · m · n · k. FLOPs and bytes are a small multiple of this product.
inline constexpr int64_t kMostWork = int64_t{1} << 56;
// Whether the dimensions are not negative and batch · m · n · k is at most kMostWork.
[[nodiscard]] bool dimensions_fit(const Operator& op);

// Whether the operator is attention's backward, by its name: in a recorded pass under DDP the
// forward that a checkpoint runs again is an operator of kBackward, too.
[[nodiscard]] bool is_attention_backward(const Operator& op);

struct WorkloadItem {  // a hook, an operator or communication, in the order of a step
  enum class Kind : uint8_t { kHook, kOperator, kCommunication };
  Kind kind = Kind::kOperator;
  uint32_t index = 0;  // into hooks, operators or communications
  friend bool operator==(const WorkloadItem&, const WorkloadItem&) = default;
};

// A collective of a step on one rank that the model's program issues itself, and not a hook: parts
// of activations, tokens for their experts, the norm of the gradients. For memory it is what an
// operator is.
struct Communication {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Purpose purpose = Purpose::kOther;
  Phase phase = Phase::kForward;
  mesh::GroupId group = mesh::kNoGroup;  // of ResolvedPlan::groups
  UnitId unit = 0;
  std::string module;  // FQN of the module that issues it; "": not known
  Bytes bytes = 0;     // of each rank: the larger of what it sends and what it receives
  // kAllToAll in which the ranks have unequal parts: by position in the group, the bytes that each
  // rank sends there or, with `returns`, that each receives from there; `bytes` is the largest sum
  // of a rank. Empty: each rank sends and receives `bytes`.
  std::vector<Bytes> parts;
  bool returns = false;
  // The item of the same microbatch before which compute waits for it; nullopt: the next item. If
  // that item never comes after this one, compute waits at the end of the forward's backward.
  std::optional<WorkloadItem> waited_by;
  bool read_by_host = false;  // the host waits for its result on a device, where compute does
  // The operator or communication of forward that it differentiates (kBackward) or repeats
  // (kRecompute). kBackward without it: it runs after the operator before it in the order.
  std::optional<WorkloadItem> forward;
  Bytes written = 0;  // 0: it works in place
  // As in Operator. takes_before() counts operators and communications.
  Bytes saved = 0, frees = 0;
  uint32_t takes = 0;
  friend bool operator==(const Communication&, const Communication&) = default;
};

// The bytes that the rank at `position` of the group has before an all-to-all, and after it.
[[nodiscard]] Bytes sent_by(const Communication& each, int64_t position);
[[nodiscard]] Bytes received_by(const Communication& each, int64_t position);

// The items that one rank runs in one step, in order, with fresh views (the units' backwards run in
// the reverse order of their forwards).
struct Workload {
  int64_t batch = 0, seq = 0;
  Program program = Program::kEngine;
  Software software = {};
  std::vector<Operator> operators;
  std::vector<HookEvent> hooks;
  std::vector<Communication> communications;
  std::vector<WorkloadItem> order;
  std::vector<Operator> in_backward;  // of the optimizer, by unit: run with the actions kStep
  friend bool operator==(const Workload&, const Workload&) = default;
};

// Operators and communications are numbered together where both are work: operators first.
// `item`: no hook.
[[nodiscard]] inline uint32_t number_of(const Workload& workload, const WorkloadItem& item) {
  return item.kind == WorkloadItem::Kind::kOperator
             ? item.index
             : static_cast<uint32_t>(workload.operators.size()) + item.index;
}
[[nodiscard]] inline size_t numbers_in(const Workload& workload) {
  return workload.operators.size() + workload.communications.size();
}

// workload.json, version 1; parse_workload(to_json(w, plan), plan) == w. The file names the groups
// of communications with their sizes; those that `plan` does not have are added to it.
// Errors: InputError with JSON pointer.
[[nodiscard]] std::string to_json(const Workload& workload, const ResolvedPlan& plan);
[[nodiscard]] Workload parse_workload(std::string_view json,
                                      const std::string& source,
                                      ResolvedPlan& plan);

}  // namespace shardlens::plan
