#pragma once

#include <cstdint>
#include <vector>

#include "core/base/hook.h"
#include "core/schedule/planned/planned.h"
#include "core/workload/workload.h"

namespace shardlens::schedule {

// The communications of a workload that compute has not waited for yet, while the items of a step
// are put in order. Each wait is added to the order before the item that needs the result.
//
// Ownership  refers to the workload, which must outlive it.
class AwaitedCommunications {
 public:
  explicit AwaitedCommunications(const plan::Workload& workload) : workload_(workload) {}

  [[nodiscard]] bool empty() const { return awaited_.empty(); }
  // Adds the communication and, unless a later item waits for it, its wait.
  void begin(uint32_t index, std::vector<PlannedItem>& order);
  // Called before the item, or a hook like it, is added.
  void wait_before(const plan::WorkloadItem& item, std::vector<PlannedItem>& order);
  void wait_before(const HookEvent& event, std::vector<PlannedItem>& order);
  // What is waited for before an item that does not come.
  void wait_for_all(std::vector<PlannedItem>& order);

 private:
  template <typename Waits>
  void wait_if(const Waits& waits, std::vector<PlannedItem>& order);

  const plan::Workload& workload_;
  std::vector<uint32_t> awaited_;  // in the order of their begin; each has an item that waits
};

}  // namespace shardlens::schedule
