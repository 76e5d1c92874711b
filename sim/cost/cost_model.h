#pragma once

#include <limits>

#include "core/base/collective_timer.h"
#include "core/base/hook.h"
#include "core/base/units.h"
#include "core/schedule/action.h"
#include "core/workload/workload.h"

namespace shardlens::sim {

// How long work takes on its own, and with concurrent work of the other kind during all of it:
// communication for compute, compute for communication. With concurrent work during a part of it,
// each part progresses at its own rate.
struct WorkTime {
  Nanoseconds alone = 0, beside = 0;  // alone: 0 if nothing runs (a view)
  friend bool operator==(const WorkTime&, const WorkTime&) = default;
};

// How a collective uses links that collectives of other communicators use at the same time.
struct LinkUse {
  // The part of its time that grows in proportion to the number of collectives that move data over
  // the same links: all except its latency. 0: it has the links for itself.
  Nanoseconds transfer = 0;
  bool across_nodes = false;  // over the network, otherwise within the node
  bool takes_cores = true;    // false: it does not slow compute (CostModel::takes_cores)
  friend bool operator==(const LinkUse&, const LinkUse&) = default;
};

struct OperatorCost {  // of an operator: on the device and on the host
  WorkTime run;
  Nanoseconds issue = 0;  // on the host
};

// An operator without work of its own: a view.
inline bool is_view(const plan::Operator& op) {
  return op.read == 0 && op.written == 0 && op.flops == 0;
}

// Durations of everything that the simulator puts on a timeline.
//
// Threads  const and callable from any thread.
class CostModel : public CollectiveTimer {
 public:
  // The operator's kernels on the device (on a CPU, the operator itself).
  [[nodiscard]] virtual WorkTime compute(const plan::Operator& op) const = 0;
  // A collective of a group with `ranks_per_node` of its ranks in each node; within a node the same
  // as duration().
  [[nodiscard]] virtual Nanoseconds duration_across(CollectiveKind kind,
                                                    int ranks,
                                                    int /*ranks_per_node*/,
                                                    Bytes larger_message) const {
    return duration(kind, ranks, larger_message);
  }
  // GPUs per node; further ranks are on the next nodes.
  [[nodiscard]] virtual int node_ranks() const { return std::numeric_limits<int>::max(); }
  // Mean time that a rank of such a group waits for its peers before the collective moves data.
  [[nodiscard]] virtual Nanoseconds peer_wait(CollectiveKind /*kind*/, int /*ranks*/) const {
    return 0;
  }
  // Factor by which concurrent compute slows a collective; at least 1.
  [[nodiscard]] virtual double collective_slowdown() const { return 1; }
  // Whether such a collective, within a node, takes cores of the device from compute and so slows
  // it.
  [[nodiscard]] virtual bool takes_cores(CollectiveKind /*kind*/) const { return true; }
  // Whether such a collective moves data more slowly while a collective of another communicator
  // moves data over the same links. Otherwise each has them for itself.
  [[nodiscard]] virtual bool shares_links(CollectiveKind /*kind*/) const { return false; }
  // Whether the call of such a collective of a unit returns only when it has ended (only on a CPU).
  [[nodiscard]] virtual bool blocks(CollectiveKind /*kind*/) const { return false; }
  // Delay of a host thread when it wakes up from a wait.
  [[nodiscard]] virtual Nanoseconds waking() const { return 0; }
  // Factor by which concurrent communication slows the host's work other than operators, on a CPU.
  [[nodiscard]] virtual double host_slowdown() const { return 1; }
  // Copies within the device's memory: casts, packing, splitting.
  [[nodiscard]] virtual Nanoseconds copy(Bytes read, Bytes written) const = 0;
  // The copy of an action; `largest`: of the plan's largest unit.
  [[nodiscard]] virtual Nanoseconds copy_of(schedule::Op /*op*/,
                                            Bytes read,
                                            Bytes written,
                                            bool /*largest*/) const {
    return copy(read, written);
  }
  // Copies between host and device.
  [[nodiscard]] virtual Nanoseconds host_copy(Bytes bytes) const = 0;
  // Whether operators run on a device, and not on the host.
  [[nodiscard]] virtual bool has_device() const { return false; }
  // With has_device(): an operator that the host runs itself. Errors: InputError if not known.
  [[nodiscard]] virtual Nanoseconds on_host(const plan::Operator& /*op*/) const { return 0; }
  // The size divided by the nearest measured size, where the duration rests on measured sizes and
  // this one is outside of them; otherwise 1.
  [[nodiscard]] virtual double beyond(CollectiveKind /*kind*/,
                                      int /*ranks*/,
                                      Bytes /*larger_message*/) const {
    return 1;
  }
  [[nodiscard]] virtual double beyond(const plan::Operator& /*op*/) const { return 1; }
  // Host time to issue an operator, or an action of the schedule.
  [[nodiscard]] virtual Nanoseconds issue(const plan::Operator& op) const = 0;
  [[nodiscard]] virtual Nanoseconds issue(schedule::Op op) const = 0;
  // Host time to issue communication of the workload: by default, that of a unit's collective.
  [[nodiscard]] virtual Nanoseconds issue_communication(const plan::Communication& each) const {
    return issue(each.kind == CollectiveKind::kReduceScatter ? schedule::Op::kReduceScatter
                 : each.kind == CollectiveKind::kAllReduce   ? schedule::Op::kAllReduce
                                                             : schedule::Op::kAllGather);
  }
  // Host time between issuing it and waiting for it, apart from that of other items.
  [[nodiscard]] virtual Nanoseconds before_wait(const plan::Communication& /*each*/) const {
    return 0;
  }
  // Host time of a hook without its actions.
  [[nodiscard]] virtual Nanoseconds issue_hook(Hook /*hook*/) const { return 0; }
};

}  // namespace shardlens::sim
