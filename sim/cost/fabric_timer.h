#pragma once

#include <memory>
#include <string_view>

#include "core/base/collective_timer.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// How long collectives take within a node: by a measured curve of the same kind and number of ranks
// where the spec has one, otherwise by NCCL's own model.
//
// A group of one rank takes nothing.
// Source  NCCL graph/tuning.cc@5067397 (latencies, protocols, bus bandwidth).
class FabricTimer final : public CollectiveTimer {
 public:
  explicit FabricTimer(FabricSpec fabric) : fabric_(std::move(fabric)) {}
  [[nodiscard]] Nanoseconds duration(CollectiveKind kind,
                                     int ranks,
                                     Bytes larger_message) const override;
  [[nodiscard]] int ctas() const override {
    return fabric_.sms > 0 ? static_cast<int>(fabric_.sms) : CollectiveTimer::ctas();
  }
  // The same of a group that spans several nodes, so many of its ranks in each. Only
  // `network_gbps` times the group's ranks of a node passes between nodes.
  [[nodiscard]] Nanoseconds duration_across(CollectiveKind kind,
                                            int ranks,
                                            int ranks_per_node,
                                            Bytes larger_message) const;
  // NCCL's model alone, in microseconds: the fastest of ring, tree and (within a node that has it)
  // NVLS, and of their protocols. Trees and NVLS serve all-reduces alone.
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
  [[nodiscard]] double tree_us(int ranks, int ranks_per_node, Bytes bytes) const;
  [[nodiscard]] double nvls_us(Bytes bytes) const;

  FabricSpec fabric_;
};

// What `--hardware` names: "ab:MICROSECONDS:GBPS", a spec's name or a spec file.
// Errors: UsageError, InputError as AlphaBetaTimer::parse and load_hardware.
[[nodiscard]] std::shared_ptr<const CollectiveTimer> make_collective_timer(
    std::string_view hardware);

}  // namespace shardlens::sim
