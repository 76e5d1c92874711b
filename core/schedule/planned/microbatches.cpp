#include "core/schedule/planned/microbatches.h"

namespace shardlens::schedule {

std::vector<size_t> microbatches(const PlannedStep& step) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < step.order.size(); ++i) {
    if (step.order[i].kind == PlannedItem::Kind::kHook &&
        step.hooks[step.order[i].index].hook == Hook::kRootPreForward) {
      begins.push_back(i);
    }
  }
  return begins;
}

bool same_item(const PlannedStep& step, size_t a, size_t b) {
  const PlannedItem &one = step.order[a], &other = step.order[b];
  if (one.kind != other.kind) {
    return false;
  }
  switch (one.kind) {
    case PlannedItem::Kind::kOperator:
    case PlannedItem::Kind::kCommunication:
    case PlannedItem::Kind::kWait:
      return one.index == other.index && one.count == other.count;
    case PlannedItem::Kind::kHook:
      return step.hooks[one.index].hook == step.hooks[other.index].hook &&
             step.hooks[one.index].unit == step.hooks[other.index].unit;
    case PlannedItem::Kind::kAction: {
      const Action &x = step.actions[one.index].action, &y = step.actions[other.index].action;
      return x.op == y.op && x.unit == y.unit && x.stream == y.stream &&
             x.buffer.kind == y.buffer.kind && x.buffer.unit == y.buffer.unit;
    }
  }
  return false;
}

}  // namespace shardlens::schedule
