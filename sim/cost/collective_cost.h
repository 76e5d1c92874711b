#pragma once

#include <memory>
#include <string_view>

#include "core/base/collective_timer.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// How long collectives take: within a node by a measured curve of the same kind and number of ranks
// if the spec has one (see non_decreasing() in collective_curve.h), otherwise by NCCL's own model.
//
// A collective of one rank takes no time.
//
// [Note: All-to-all] NCCL has no algorithm for it: c10d groups a send and a receive for each peer,
// which one kernel runs at the same time, by the protocol LL or Simple. So nothing is passed on
// from rank to rank, and there is one step's latency. Over NVSwitch a rank sends to all peers in
// its node at the bandwidth of its links, which is that of a ring (nccl-tests on 4 H100: 335 GB/s
// at 500 MB, NVIDIA/nccl#2169). Peers in other nodes share the rank's own network adapter, since an
// all-to-all cannot use those of other ranks (NVIDIA/nccl-tests#267).
//
// Source  NCCL graph/tuning.cc@5067397 (latencies, protocols, bus bandwidth).
class FabricTimer final : public CollectiveTimer {
 public:
  explicit FabricTimer(FabricSpec fabric);
  [[nodiscard]] Nanoseconds duration(CollectiveKind kind,
                                     int ranks,
                                     Bytes larger_message) const override;
  [[nodiscard]] int ctas() const override {
    return fabric_.sms > 0 ? static_cast<int>(fabric_.sms) : CollectiveTimer::ctas();
  }
  // The same for a group that spans several nodes, with `ranks_per_node` of its ranks in each. The
  // bandwidth between nodes is at most `network_gbps` times `ranks_per_node`.
  [[nodiscard]] Nanoseconds duration_across(CollectiveKind kind,
                                            int ranks,
                                            int ranks_per_node,
                                            Bytes larger_message) const;
  // NCCL's model without measured curves, in microseconds: the fastest of ring, tree and (within a
  // node that has it) NVLS, and of their protocols. Only all-reduces use trees and NVLS;
  // all-to-alls use none of these.
  [[nodiscard]] double model_us(CollectiveKind kind,
                                int ranks,
                                int ranks_per_node,
                                Bytes larger_message) const;

 private:
  [[nodiscard]] double bus_gbps(int ranks, int ranks_per_node) const;
  [[nodiscard]] double ring_us(CollectiveKind kind,
                               int ranks,
                               int ranks_per_node,
                               Bytes bytes) const;
  [[nodiscard]] double exchange_us(int ranks, int ranks_per_node, Bytes bytes) const;
  [[nodiscard]] double tree_us(int ranks, int ranks_per_node, Bytes bytes) const;
  [[nodiscard]] double nvls_us(Bytes bytes) const;

  FabricSpec fabric_;
};

// The timer for an argument of `--hardware`: "ab:MICROSECONDS:GBPS", a spec's name or a spec file.
// Errors: UsageError, InputError as AlphaBetaTimer::parse and load_hardware.
[[nodiscard]] std::shared_ptr<const CollectiveTimer> make_collective_timer(
    std::string_view hardware);

}  // namespace shardlens::sim
