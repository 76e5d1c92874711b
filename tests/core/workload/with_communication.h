#pragma once

#include <cstdint>
#include <utility>

#include "core/workload/workload.h"

namespace shardlens::test {

// Inserts communication before the item at `position` of the order; returns the item.
inline plan::WorkloadItem insert_communication(plan::Workload& workload,
                                               size_t position,
                                               plan::Communication communication) {
  const plan::WorkloadItem item{plan::WorkloadItem::Kind::kCommunication,
                                static_cast<uint32_t>(workload.communications.size())};
  workload.communications.push_back(std::move(communication));
  workload.order.insert(workload.order.begin() + static_cast<std::ptrdiff_t>(position), item);
  return item;
}

// The position in the order of the `count`-th operator, from 0, with this phase.
inline size_t position_of(const plan::Workload& workload, plan::Phase phase, int count) {
  size_t at = 0;
  for (; at < workload.order.size(); ++at) {
    const plan::WorkloadItem& item = workload.order[at];
    if (item.kind == plan::WorkloadItem::Kind::kOperator &&
        workload.operators[item.index].phase == phase && count-- == 0) {
      break;
    }
  }
  return at;
}

}  // namespace shardlens::test
