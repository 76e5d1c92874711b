#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/hook.h"
#include "core/base/units.h"
#include "core/plan/plan.h"

namespace shardlens::plan {

enum class Phase : uint8_t { kForward, kLoss, kBackward, kOptimizer };
enum class OperatorKind : uint8_t { kGemm, kAttention, kEmbedding, kNorm, kElementwise, kLoss, kOptimizer };

// One operator of a step on one rank.
struct Operator {
  OperatorKind kind = OperatorKind::kElementwise;
  Phase phase = Phase::kForward;
  UnitId unit = 0;
  std::string name;    // as RecordFunction names it: "aten::mm", "aten::addmm", "aten::scaled_dot_product_attention", …
  std::string module;  // FQN of the module that runs it
  int64_t batch = 1, m = 0, n = 0, k = 0;  // kGemm: batch × [m,k]·[k,n]. kAttention: batch = B·heads, m = query, n = key tokens, k = head_dim
  DType dtype = DType::kF32;
  int64_t flops = 0;
  Bytes read = 0, written = 0;
  Bytes saved = 0;       // kept for backward from here on
  int32_t forward = -1;  // kBackward: index of the forward operator that it differentiates
};

struct WorkloadItem {
  enum class Kind : uint8_t { kHook, kOperator };
  Kind kind = Kind::kOperator;
  uint32_t index = 0;  // into hooks or operators
};

// What one rank runs in one step, in order, with fresh views (backward visits units in reverse order of their forwards).
struct Workload {
  int64_t batch = 0, seq = 0;
  std::vector<Operator> operators;
  std::vector<HookEvent> hooks;
  std::vector<WorkloadItem> order;
};

[[nodiscard]] Workload step_workload(const ModelConfig& config, const ResolvedPlan& plan, int64_t batch, int64_t seq);
// workload.json, version 1; parse_workload(to_json(w)) == w.
[[nodiscard]] std::string to_json(const Workload& workload, const ResolvedPlan& plan);
[[nodiscard]] Workload parse_workload(std::string_view json, const std::string& source);

}  // namespace shardlens::plan
