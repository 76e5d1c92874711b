#pragma once

#include <memory>
#include <string_view>

#include "core/base/collective_timer.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// How long collectives take within a node: by a measured curve of the same kind and number of ranks
// where the spec has one, otherwise by NCCL's own model.
//
// [Note: Interpolation] Linear in bytes between measured sizes, since time is latency plus bytes
// over bandwidth there; a straight line through logarithms overshoots (mean error on sizes left out
// of the H100 curves, from 1 MiB up: 3.5 % for all-gather against 6.5 %). Below the smallest size
// its time holds, beyond the largest the bandwidth between the last two.
//
// A group of one rank takes nothing.
// Source  NCCL graph/tuning.cc@5067397 (latencies, protocols, bus bandwidth).
class FabricTimer final : public CollectiveTimer {
 public:
  explicit FabricTimer(FabricSpec fabric) : fabric_(std::move(fabric)) {}
  [[nodiscard]] Nanoseconds duration(CollectiveKind kind,
                                     int ranks,
                                     Bytes larger_message) const override;
  // The same of a group that spans several nodes, so many of its ranks in each. Only
  // `network_gbps` times the group's ranks of a node passes between nodes.
  [[nodiscard]] Nanoseconds duration_across(CollectiveKind kind,
                                            int ranks,
                                            int ranks_per_node,
                                            Bytes larger_message) const;
  // NCCL's model alone, in microseconds.
  [[nodiscard]] double model_us(CollectiveKind kind,
                                int ranks,
                                int ranks_per_node,
                                Bytes larger_message) const;

 private:
  FabricSpec fabric_;
};

// What `--hardware` names: "ab:MICROSECONDS:GBPS", a spec's name or a spec file.
// Errors: UsageError, InputError as AlphaBetaTimer::parse and load_hardware.
[[nodiscard]] std::shared_ptr<const CollectiveTimer> make_collective_timer(
    std::string_view hardware);

}  // namespace shardlens::sim
