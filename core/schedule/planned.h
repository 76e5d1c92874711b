#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/workload.h"
#include "core/schedule/action.h"
#include "core/schedule/buckets.h"
#include "core/schedule/schedule.h"

namespace shardlens::schedule {

struct PlannedAction {
  uint32_t seq = 0;  // from 1 within the list
  HookEvent hook;    // that caused it
  Action action;
};

struct PlannedItem {
  enum class Kind : uint8_t { kHook, kOperator, kAction };
  Kind kind = Kind::kOperator;
  uint32_t index = 0;  // into hooks, Workload::operators or actions
  friend bool operator==(const PlannedItem&, const PlannedItem&) = default;
};

// The hook events of one step in the order in which autograd raises them, and what the schedule
// answers.
//
// [Note: Backward order] Autograd runs the newest node first; a unit's gradients are complete
// when the node that made its views (kUseFull in forward) has run. So backward order follows
// from the order of kUseFull and forward operators, not from the module tree: FSDP1's forward
// prefetch, frozen views and units used twice come out right without a special case. See
// autograd_queue.h.
struct PlannedStep {
  std::vector<HookEvent> hooks;
  std::vector<PlannedAction> actions;
  // Hooks, actions (after the hook that caused them) and operators as the host comes to them.
  std::vector<PlannedItem> order;
  // By Action::unit and, for a launch of theirs, HookEvent::unit: FQNs of the plan's units and,
  // beyond, the buckets of its replicated ones (buckets.h).
  std::vector<std::string> unit_names;
  std::vector<PlannedBucket> buckets;  // as they are in this step, in the order reduced
};

// [Note: Operators of a backward] They run when the node of the forward operator that they
// differentiate does, so they follow the hooks in whatever order these come.

// The `step`-th step (from 1); the third is steady: from then on nothing changes. Errors: RuntimeFault if the
// schedule refuses a hook.
[[nodiscard]] PlannedStep planned_step(const plan::Workload& workload,
                                       const plan::ResolvedPlan& plan,
                                       int step = 3,
                                       int accumulate = 1,
                                       bool sync_every_microbatch = true);
[[nodiscard]] PlannedStep planned_step(const plan::Workload& workload,
                                       const plan::ResolvedPlan& plan,
                                       int step,
                                       const plan::StepSettings& settings);

}  // namespace shardlens::schedule
