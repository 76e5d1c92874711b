#pragma once

#include <cstdint>
#include <vector>

#include "core/base/hook.h"
#include "core/plan/workload.h"

namespace shardlens::schedule {

// The parts of a workload that are needed to plan a step. Made once for all plans that run the same
// operators.
struct WorkloadOutline {
  struct Forward {
    plan::WorkloadItem::Kind kind = plan::WorkloadItem::Kind::kOperator;
    uint32_t index = 0;
    UnitId unit = 0;     // unit of the operator or hook
    uint32_t count = 1;  // it is this many operators, from `index` on
  };
  std::vector<Forward> forward;  // hooks and operators up to the first hook of backward
  // The operators that differentiate operator i, in order, are backward[k] for k from
  // first_backward[i] up to, excluding, first_backward[i + 1].
  std::vector<uint32_t> first_backward, backward;
  std::vector<uint32_t> optimizer;
  // The items that activation checkpointing runs again before the backward that first needs them,
  // and by the forward operator of that backward the index of its items, or kNone.
  static constexpr uint32_t kNone = 0xffffffffU;
  std::vector<std::vector<plan::WorkloadItem>> recomputed;
  std::vector<uint32_t> recomputed_before;
  size_t items = 0;  // size of Workload::order
};

[[nodiscard]] WorkloadOutline workload_outline(const plan::Workload& workload);

}  // namespace shardlens::schedule
