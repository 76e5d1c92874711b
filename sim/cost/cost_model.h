#pragma once

#include <limits>

#include "core/base/collective_timer.h"
#include "core/base/hook.h"
#include "core/base/units.h"
#include "core/plan/workload.h"
#include "core/schedule/action.h"

namespace shardlens::sim {

// How long work takes with nothing beside it, and with the other kind beside it all along:
// communication beside compute, or compute beside communication. Between the two it progresses at
// the rate of what is the case.
struct WorkTime {
  Nanoseconds alone = 0, beside = 0;  // alone 0: nothing runs (a view)
  friend bool operator==(const WorkTime&, const WorkTime&) = default;
};

struct OperatorCost {
  WorkTime run;
  Nanoseconds issue = 0;  // on the host
};

// Durations of all that the simulator puts on a timeline.
//
// Threads  const and callable from any thread.
class CostModel : public CollectiveTimer {
 public:
  // The operator's kernels on the device (on a CPU, the operator itself).
  [[nodiscard]] virtual WorkTime compute(const plan::Operator& op) const = 0;
  // A collective of a group with so many of its ranks in each node; within a node as duration().
  [[nodiscard]] virtual Nanoseconds duration_across(CollectiveKind kind,
                                                    int ranks,
                                                    int /*ranks_per_node*/,
                                                    Bytes larger_message) const {
    return duration(kind, ranks, larger_message);
  }
  // GPUs of a node; ranks beyond are on the next.
  [[nodiscard]] virtual int node_ranks() const { return std::numeric_limits<int>::max(); }
  // How long a rank of that group waits on average for its peers before the collective moves data.
  [[nodiscard]] virtual Nanoseconds peer_wait(CollectiveKind /*kind*/, int /*ranks*/) const {
    return 0;
  }
  // How much longer a collective takes with compute beside it; at least 1.
  [[nodiscard]] virtual double collective_slowdown() const { return 1; }
  // What a thread of the host that slept in a wait loses when it goes on.
  [[nodiscard]] virtual Nanoseconds waking() const { return 0; }
  // The same of what the host of a CPU does beside operators, with communication beside it.
  [[nodiscard]] virtual double host_slowdown() const { return 1; }
  // Copies within the device's memory: casts, packing, splitting.
  [[nodiscard]] virtual Nanoseconds copy(Bytes read, Bytes written) const = 0;
  // Between host and device.
  [[nodiscard]] virtual Nanoseconds host_copy(Bytes bytes) const = 0;
  // What the host spends on issuing an operator, or an action of the schedule.
  [[nodiscard]] virtual Nanoseconds issue(const plan::Operator& op) const = 0;
  [[nodiscard]] virtual Nanoseconds issue(schedule::Op op) const = 0;
  // What it spends on a hook beside its actions.
  [[nodiscard]] virtual Nanoseconds issue_hook(Hook /*hook*/) const { return 0; }
};

}  // namespace shardlens::sim
