#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/base/hook.h"
#include "core/plan/workload.h"

namespace shardlens::schedule {

// What planning a step looks at of a workload, small and in order: made once for all plans that run
// the same operators.
struct WorkloadOutline {
  struct Forward {
    plan::WorkloadItem::Kind kind = plan::WorkloadItem::Kind::kOperator;
    uint32_t index = 0;
    UnitId unit = 0;  // of an operator
  };
  std::vector<Forward> forward;  // hooks and operators up to the first hook of backward
  // Those that differentiate operator i, in order: backward[first_backward[i]] up to that of i + 1.
  std::vector<uint32_t> first_backward, backward;
  std::vector<uint32_t> optimizer;
  // What activation checkpointing runs again before the gradient that first needs it, by the
  // forward operator of that.
  std::unordered_map<uint32_t, std::vector<plan::WorkloadItem>> recomputed;
  size_t items = 0;  // of Workload::order
};

[[nodiscard]] WorkloadOutline workload_outline(const plan::Workload& workload);

}  // namespace shardlens::schedule
