#include "sim/cost/scaled_cost_model.h"

#include <algorithm>
#include <cmath>

namespace shardlens::sim {
namespace {

Nanoseconds faster(Nanoseconds time, double speed) {
  return std::llround(static_cast<double>(time) / speed);
}

Nanoseconds collective(Nanoseconds time, Nanoseconds of_one_byte, const Speeds& speeds) {
  const Nanoseconds latency = std::min(time, of_one_byte);
  return std::llround(static_cast<double>(latency) * speeds.latency +
                      static_cast<double>(time - latency) / speeds.bandwidth);
}

}  // namespace

WorkTime ScaledCostModel::compute(const plan::Operator& op) const {
  const WorkTime base = base_.compute(op);
  return {faster(base.alone, speeds_.compute), faster(base.beside, speeds_.compute)};
}

Nanoseconds ScaledCostModel::duration(CollectiveKind kind, int ranks, Bytes larger_message) const {
  return collective(base_.duration(kind, ranks, larger_message), base_.duration(kind, ranks, 1),
                    speeds_);
}

Nanoseconds ScaledCostModel::duration_across(CollectiveKind kind,
                                             int ranks,
                                             int ranks_per_node,
                                             Bytes larger_message) const {
  return collective(base_.duration_across(kind, ranks, ranks_per_node, larger_message),
                    base_.duration_across(kind, ranks, ranks_per_node, 1), speeds_);
}

Nanoseconds ScaledCostModel::waking() const {
  return faster(base_.waking(), speeds_.host);
}

Nanoseconds ScaledCostModel::copy(Bytes read, Bytes written) const {
  return faster(base_.copy(read, written), speeds_.compute);
}

Nanoseconds ScaledCostModel::copy_of(schedule::Op op,
                                     Bytes read,
                                     Bytes written,
                                     bool largest) const {
  return faster(base_.copy_of(op, read, written, largest), speeds_.compute);
}

Nanoseconds ScaledCostModel::host_copy(Bytes bytes) const {
  return faster(base_.host_copy(bytes), speeds_.bandwidth);
}

Nanoseconds ScaledCostModel::on_host(const plan::Operator& op) const {
  return faster(base_.on_host(op), speeds_.host);
}

Nanoseconds ScaledCostModel::issue(const plan::Operator& op) const {
  return faster(base_.issue(op), speeds_.host);
}

Nanoseconds ScaledCostModel::issue(schedule::Op op) const {
  return faster(base_.issue(op), speeds_.host);
}

Nanoseconds ScaledCostModel::issue_communication(const plan::Communication& each) const {
  return faster(base_.issue_communication(each), speeds_.host);
}

Nanoseconds ScaledCostModel::before_wait(const plan::Communication& each) const {
  return faster(base_.before_wait(each), speeds_.host);
}

Nanoseconds ScaledCostModel::issue_hook(Hook hook) const {
  return faster(base_.issue_hook(hook), speeds_.host);
}

}  // namespace shardlens::sim
