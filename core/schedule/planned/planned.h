#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/schedule/action.h"
#include "core/schedule/buckets.h"
#include "core/schedule/schedule.h"
#include "core/workload/workload.h"

namespace shardlens::schedule {

struct PlannedAction {  // an action and its reason
  uint32_t seq = 0;     // from 1 within the list
  HookEvent hook;       // the hook that caused it
  Action action;
};

struct PlannedItem {  // an entry of the order of a step
  // kWait: compute waits for the communication.
  enum class Kind : uint8_t { kHook, kOperator, kAction, kCommunication, kWait };
  Kind kind = Kind::kOperator;
  // Into hooks, Workload::operators or actions; kCommunication and kWait: into
  // Workload::communications.
  uint32_t index = 0;
  uint32_t count = 1;  // kOperator: it is this many operators, from `index` on (SteadySteps only)
  friend bool operator==(const PlannedItem&, const PlannedItem&) = default;
};

// The hook events of one step in the order in which autograd raises them, and the schedule's
// actions for them.
//
// [Note: Backward order] Autograd runs the newest node first, and a unit's gradients are complete
// when the node of its views (made by kUseFull in forward) has run. So the order of backward
// follows from the order of kUseFull and of the forward operators, not from the module tree.
// FSDP1's forward prefetch, frozen views and units that are used twice need no special case. See
// autograd_queue.h.
struct PlannedStep {
  std::vector<HookEvent> hooks;
  std::vector<PlannedAction> actions;
  // Hooks, actions (after the hook that caused them), operators and communications in the order of
  // the host, with a kWait for each communication.
  std::vector<PlannedItem> order;
  // By Action::unit and HookEvent::unit: FQNs of the plan's units, then the names of the buckets of
  // its replicated units (buckets.h).
  std::vector<std::string> unit_names;
  std::vector<PlannedBucket> buckets;  // the buckets of this step, in the order of reduction
  // The first item after the last microbatch, if all from the second one on do the same and so
  // would more of them; otherwise 0 (SteadySteps only).
  size_t tail = 0;
};

// [Note: Operators of a backward] They run together with the node of the forward operator that they
// differentiate, so their order is consistent with that of the hooks. Communications are placed as
// operators are; one of backward that names no forward item runs after the operator of backward
// that comes before it in the workload.

// The `step`-th step (from 1). From the third step on, the state is steady. Errors: RuntimeFault if
// the schedule refuses a hook; with settings, also those of plan::require_step_support().
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
