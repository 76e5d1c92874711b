#include "core/schedule/planned/awaited_communications.h"

namespace shardlens::schedule {

using plan::WorkloadItem;

void AwaitedCommunications::begin(uint32_t index, std::vector<PlannedItem>& order) {
  wait_before(WorkloadItem{WorkloadItem::Kind::kCommunication, index}, order);
  order.push_back({PlannedItem::Kind::kCommunication, index});
  if (workload_.communications[index].waited_by) {
    awaited_.push_back(index);
  } else {
    order.push_back({PlannedItem::Kind::kWait, index});
  }
}

template <typename Waits>
void AwaitedCommunications::wait_if(const Waits& waits, std::vector<PlannedItem>& order) {
  std::erase_if(awaited_, [&](uint32_t index) {
    const bool now = waits(*workload_.communications[index].waited_by);
    if (now) {
      order.push_back({PlannedItem::Kind::kWait, index});
    }
    return now;
  });
}

void AwaitedCommunications::wait_before(const WorkloadItem& item, std::vector<PlannedItem>& order) {
  wait_if([&item](const WorkloadItem& by) { return by == item; }, order);
}

void AwaitedCommunications::wait_before(const HookEvent& event, std::vector<PlannedItem>& order) {
  const auto like = [&](const WorkloadItem& by) {
    if (by.kind != WorkloadItem::Kind::kHook) {
      return false;
    }
    const HookEvent& hook = workload_.hooks[by.index];
    return hook.hook == event.hook && hook.unit == event.unit &&
           hook.invocation == event.invocation && hook.recompute == event.recompute;
  };
  wait_if(like, order);
}

void AwaitedCommunications::wait_for_all(std::vector<PlannedItem>& order) {
  wait_if([](const WorkloadItem&) { return true; }, order);
}

}  // namespace shardlens::schedule
