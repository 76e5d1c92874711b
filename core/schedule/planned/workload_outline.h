#pragma once

#include <cstdint>
#include <vector>

#include "core/base/hook.h"
#include "core/workload/workload.h"

namespace shardlens::schedule {

// The parts of a workload that are needed to plan a step. Made once for all plans that run the same
// operators.
struct WorkloadOutline {
  struct Forward {
    plan::WorkloadItem::Kind kind = plan::WorkloadItem::Kind::kOperator;
    uint32_t index = 0;  // of the hook; otherwise plan::number_of()
    UnitId unit = 0;     // of the item
    uint32_t count = 1;  // it is this many operators, from `index` on
  };
  std::vector<Forward> forward;  // what comes before the first hook of backward
  // Operators and communications by plan::number_of(). Those that differentiate the one with number
  // i, in order, are backward[k] for k from first_backward[i] up to, excluding,
  // first_backward[i + 1].
  std::vector<uint32_t> first_backward, backward;
  // By number i: the backward of i, of the one before it, and so on down to chained_to[i], is
  // successive operators, the first of which is chain_begin[i], and nothing is run again between
  // them.
  std::vector<uint32_t> chained_to, chain_begin;
  std::vector<uint32_t> optimizer;
  // The items that activation checkpointing runs again before the backward that first needs them,
  // and by the number of the forward item of that backward the index of its items, or kNone.
  static constexpr uint32_t kNone = 0xffffffffU;
  std::vector<std::vector<plan::WorkloadItem>> recomputed;
  std::vector<uint32_t> recomputed_before;
  size_t items = 0;  // size of Workload::order
};

[[nodiscard]] WorkloadOutline workload_outline(const plan::Workload& workload);

}  // namespace shardlens::schedule
