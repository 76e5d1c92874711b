#pragma once

#include "sim/cost/cost_model.h"

namespace shardlens::sim {

// A machine that differs from another one in how fast its parts are. 1: as it is.
struct Speeds {
  double compute = 1;    // kernels, and copies within the device's memory
  double bandwidth = 1;  // of links and network, also between host and device
  double latency = 1;    // factor on the time of a collective of one byte
  double host = 1;       // everything that the host issues
  friend bool operator==(const Speeds&, const Speeds&) = default;
};

// The costs of `base` at other speeds. A collective is the time of one byte, which is latency, and
// the rest, which is transfer. `base` must outlive it.
class ScaledCostModel : public CostModel {
 public:
  ScaledCostModel(const CostModel& base, const Speeds& speeds) : base_(base), speeds_(speeds) {}

  [[nodiscard]] WorkTime compute(const plan::Operator& op) const override;
  [[nodiscard]] Nanoseconds duration(CollectiveKind kind,
                                     int ranks,
                                     Bytes larger_message) const override;
  [[nodiscard]] Nanoseconds duration_across(CollectiveKind kind,
                                            int ranks,
                                            int ranks_per_node,
                                            Bytes larger_message) const override;
  [[nodiscard]] int ctas() const override { return base_.ctas(); }
  [[nodiscard]] int node_ranks() const override { return base_.node_ranks(); }
  [[nodiscard]] Nanoseconds peer_wait(CollectiveKind kind, int ranks) const override {
    return base_.peer_wait(kind, ranks);
  }
  [[nodiscard]] double collective_slowdown() const override { return base_.collective_slowdown(); }
  [[nodiscard]] bool takes_cores(CollectiveKind kind) const override {
    return base_.takes_cores(kind);
  }
  [[nodiscard]] bool shares_links(CollectiveKind kind) const override {
    return base_.shares_links(kind);
  }
  [[nodiscard]] bool blocks(CollectiveKind kind) const override { return base_.blocks(kind); }
  [[nodiscard]] Nanoseconds waking() const override;
  [[nodiscard]] double host_slowdown() const override { return base_.host_slowdown(); }
  [[nodiscard]] Nanoseconds copy(Bytes read, Bytes written) const override;
  [[nodiscard]] Nanoseconds copy_of(schedule::Op op,
                                    Bytes read,
                                    Bytes written,
                                    bool largest) const override;
  [[nodiscard]] Nanoseconds host_copy(Bytes bytes) const override;
  [[nodiscard]] bool has_device() const override { return base_.has_device(); }
  [[nodiscard]] Nanoseconds on_host(const plan::Operator& op) const override;
  [[nodiscard]] double beyond(CollectiveKind kind, int ranks, Bytes larger_message) const override {
    return base_.beyond(kind, ranks, larger_message);
  }
  [[nodiscard]] double beyond(const plan::Operator& op) const override { return base_.beyond(op); }
  [[nodiscard]] Nanoseconds issue(const plan::Operator& op) const override;
  [[nodiscard]] Nanoseconds issue(schedule::Op op) const override;
  [[nodiscard]] Nanoseconds issue_communication(const plan::Communication& each) const override;
  [[nodiscard]] Nanoseconds before_wait(const plan::Communication& each) const override;
  [[nodiscard]] Nanoseconds issue_hook(Hook hook) const override;

 private:
  const CostModel& base_;
  Speeds speeds_;
};

}  // namespace shardlens::sim
