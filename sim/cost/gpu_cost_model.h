#pragma once

#include "sim/cost/collective_cost.h"
#include "sim/cost/cost_model.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// Durations on a node of GPUs, from its spec.
//
// Matrix products     by waves (gemm_model.h); during communication, on the SMs that it leaves
//                     free.
// Attention           as a fused causal kernel: half of the score matrix plus the tiles on its
//                     diagonal, at the spec's rate; during communication the rate is lower in
//                     proportion to the SMs that it takes.
// Other operators     bytes divided by the bandwidth that copies reach; each tensor is read and
//                     written once, from and to memory, never the cache.
//
// The spec's `software` scales each of these. During communication, memory accesses slow down in
// proportion to the bandwidth that a ring's reads and writes take.
class GpuCostModel final : public CostModel {
 public:
  explicit GpuCostModel(const HardwareSpec& spec);
  [[nodiscard]] Nanoseconds duration(CollectiveKind kind,
                                     int ranks,
                                     Bytes larger_message) const override;
  [[nodiscard]] Nanoseconds duration_across(CollectiveKind kind,
                                            int ranks,
                                            int ranks_per_node,
                                            Bytes larger_message) const override;
  [[nodiscard]] double collective_slowdown() const override {
    return spec_.fabric.collective_slowdown;
  }
  [[nodiscard]] bool takes_cores(CollectiveKind kind) const override;
  [[nodiscard]] bool shares_links(CollectiveKind /*kind*/) const override { return true; }
  [[nodiscard]] int node_ranks() const override { return static_cast<int>(spec_.gpus); }
  [[nodiscard]] WorkTime compute(const plan::Operator& op) const override;
  [[nodiscard]] Nanoseconds copy(Bytes read, Bytes written) const override;
  [[nodiscard]] Nanoseconds host_copy(Bytes bytes) const override;
  [[nodiscard]] bool has_device() const override { return true; }
  [[nodiscard]] Nanoseconds on_host(const plan::Operator& op) const override;
  [[nodiscard]] Nanoseconds issue(const plan::Operator& op) const override;
  [[nodiscard]] Nanoseconds issue(schedule::Op op) const override;
  [[nodiscard]] Nanoseconds issue_hook(Hook hook) const override;

 private:
  [[nodiscard]] double bytes_us(Bytes bytes) const;
  [[nodiscard]] double attention_us(const plan::Operator& op) const;
  [[nodiscard]] double product_us(const plan::Operator& op, int64_t sms) const;
  [[nodiscard]] double passes(const plan::Operator& op) const;

  HardwareSpec spec_;
  GpuSpec sustained_;  // with the matrix rates that the software stack reaches
  FabricTimer timer_;
  double memory_share_ = 1;  // share of memory bandwidth that is left during communication
};

}  // namespace shardlens::sim
