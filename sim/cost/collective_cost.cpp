#include "sim/cost/collective_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/cost/alpha_beta_timer.h"
#include "sim/cost/collective_curve.h"
#include "sim/cost/transport.h"
#include "sim/hardware/topology.h"

namespace shardlens::sim {
namespace {

// Protocols of NCCL in the order of its tables: LL, LL128, Simple. Microseconds.
constexpr std::array<double, 3> kBaseLatency{6.6, 14, 8.4};   // baseLat, ring
constexpr std::array<double, 3> kNvlinkStep{0.6, 1.9, 3.4};   // hwLat NVLINK, ring
constexpr std::array<double, 3> kPcieStep{1.0, 2.5, 5.7};     // hwLat PCI, ring
constexpr std::array<double, 3> kNetworkStep{2.7, 4.0, 9.6};  // hwLat NET, ring (NCCL@01afd20)
constexpr double kLlShare = 0.5;                              // of the bus bandwidth, at most
constexpr double kLl128Share = 0.92;
// Trees for all-reduces, in the same order.
constexpr std::array<double, 3> kTreeBaseLatency{6.8, 14, 8.4};   // baseLat, tree
constexpr std::array<double, 3> kNvlinkTreeStep{0.6, 1.25, 4.0};  // hwLat NVLINK, tree
constexpr std::array<double, 3> kPcieTreeStep{1.0, 1.9, 4.0};     // hwLat PCI, tree
constexpr std::array<double, 3> kNetworkTreeStep{5.0, 8.5, 14};   // hwLat NET, tree
constexpr double kTreeShare = 0.92;                               // busBw · .92, tree
constexpr double kTreeLlDivisor = 3.8, kTreeLl128Share = 7.0 / 9.0;
constexpr double kTreeAlgorithmShare = 0.5;  // of the bus: each byte goes up and down the tree
constexpr double kNvlsLatency = 25;          // hwLat NVLINK, NVLS
// The least time of an all-to-all. Source: nccl-tests on 8 H20, 128 B to 4 KiB: 10.3 to 11.1
// (deepseek-ai/DeepEP#303).
constexpr double kLeastExchange = 10.3;

}  // namespace

FabricTimer::FabricTimer(FabricSpec fabric) : fabric_(std::move(fabric)) {
  for (CollectiveCurve& curve : fabric_.curves) {
    curve = non_decreasing(std::move(curve));
  }
}

double FabricTimer::model_us(CollectiveKind kind,
                             int ranks,
                             int ranks_per_node,
                             Bytes larger_message) const {
  if (kind == CollectiveKind::kAllToAll) {
    return exchange_us(ranks, ranks_per_node, larger_message);
  }
  double best = ring_us(kind, ranks, ranks_per_node, larger_message);
  if (kind == CollectiveKind::kAllReduce) {
    best = std::min(best, tree_us(ranks, ranks_per_node, larger_message));
    if (ranks == ranks_per_node && fabric_.nvls_gbps > 0 && ranks >= fabric_.nvls_ranks) {
      best = std::min(best, nvls_us(larger_message));
    }
  }
  return best;
}

double FabricTimer::bus_gbps(int ranks, int ranks_per_node) const {
  const double within = group_gbps(fabric_.links, ranks_per_node, fabric_.ring_gbps);
  return ranks > ranks_per_node ? std::min(within, fabric_.network_gbps * ranks_per_node) : within;
}

double FabricTimer::ring_us(CollectiveKind kind, int ranks, int ranks_per_node, Bytes bytes) const {
  // Each rank sends to one other, all at once: as one step of an all-gather of two.
  if (kind == CollectiveKind::kSendRecv) {
    return ring_us(CollectiveKind::kAllGather, 2, ranks > ranks_per_node ? 1 : 2, 2 * bytes);
  }
  const double twice = kind == CollectiveKind::kAllReduce ? 2 : 1;  // reduce-scatter + all-gather
  const double steps = twice * (ranks - 1);
  const int nodes = ranks / ranks_per_node;
  const double between = twice * (nodes - 1);
  const double ratio = kind == CollectiveKind::kReduceScatter ? fabric_.reduce_scatter_ratio : 1.0;
  const double within = bus_gbps(ranks_per_node, ranks_per_node);
  const double bus = std::min(bus_gbps(ranks, ranks_per_node), within * ratio);
  const std::array<double, 3> of_protocol{std::min(fabric_.ll_gbps, kLlShare * bus),
                                          kLl128Share * bus, bus};
  const auto& step = fabric_.link == Link::kNvlink ? kNvlinkStep : kPcieStep;
  double best = std::numeric_limits<double>::infinity();
  for (size_t protocol = 0; protocol < of_protocol.size(); ++protocol) {
    best = std::min(best,
                    kBaseLatency[protocol] + (steps - between) * step[protocol] +
                        between * kNetworkStep[protocol] +
                        static_cast<double>(bytes) / (of_protocol[protocol] * ranks / steps * 1e3));
  }
  return best;
}

// See [Note: All-to-all].
double FabricTimer::exchange_us(int ranks, int ranks_per_node, Bytes bytes) const {
  const bool network = ranks > ranks_per_node;
  const double of_peer = static_cast<double>(bytes) / ranks;
  const auto& step = fabric_.link == Link::kNvlink ? kNvlinkStep : kPcieStep;
  const double all = bus_gbps(ranks_per_node, ranks_per_node);
  const auto exchange = [&](size_t protocol, double share, double most_gbps) {
    const double bus = std::min(most_gbps, share * all);
    const double within = of_peer * (ranks_per_node - 1) / (bus * 1e3);
    const double across =
        network ? of_peer * (ranks - ranks_per_node) / (share * fabric_.network_gbps * 1e3) : 0;
    return kBaseLatency[protocol] + (network ? kNetworkStep[protocol] : step[protocol]) +
           std::max(within, across);
  };
  constexpr size_t kLl = 0, kSimple = 2;
  const double best = std::min(exchange(kLl, kLlShare, fabric_.ll_gbps), exchange(kSimple, 1, all));
  return std::max(kLeastExchange, best);
}

double FabricTimer::tree_us(int ranks, int ranks_per_node, Bytes bytes) const {
  const int nodes = ranks / ranks_per_node;
  const double bus = kTreeShare * bus_gbps(ranks, ranks_per_node);
  const std::array<double, 3> of_protocol{std::min(fabric_.ll_gbps, bus / kTreeLlDivisor),
                                          kTreeLl128Share * bus, bus};
  const auto& step = fabric_.link == Link::kNvlink ? kNvlinkTreeStep : kPcieTreeStep;
  double best = std::numeric_limits<double>::infinity();
  for (size_t protocol = 0; protocol < of_protocol.size(); ++protocol) {
    const double latency =
        kTreeBaseLatency[protocol] +
        2 * ((ranks_per_node - 1) * step[protocol] + std::log2(nodes) * kNetworkTreeStep[protocol]);
    best = std::min(best, latency + static_cast<double>(bytes) /
                                        (of_protocol[protocol] * kTreeAlgorithmShare * 1e3));
  }
  return best;
}

double FabricTimer::nvls_us(Bytes bytes) const {
  return kNvlsLatency + static_cast<double>(bytes) / (fabric_.nvls_gbps * 1e3);
}

Nanoseconds FabricTimer::duration(CollectiveKind kind, int ranks, Bytes larger_message) const {
  if (ranks <= 1) {
    return 0;
  }
  const CollectiveCurve* curve = find_curve(fabric_.curves, kind, ranks);
  const double us = curve != nullptr ? curve_us(*curve, larger_message)
                                     : model_us(kind, ranks, ranks, larger_message);
  return std::llround(std::max(us, 0.0) * 1e3 /
                      transport_speedup(fabric_.transport, kind, larger_message));
}

Nanoseconds FabricTimer::duration_across(CollectiveKind kind,
                                         int ranks,
                                         int ranks_per_node,
                                         Bytes larger_message) const {
  if (ranks <= ranks_per_node) {
    return duration(kind, ranks, larger_message);
  }
  return std::llround(model_us(kind, ranks, ranks_per_node, larger_message) * 1e3);
}

std::shared_ptr<const CollectiveTimer> make_collective_timer(std::string_view hardware) {
  if (hardware.starts_with("ab:")) {
    return std::make_shared<AlphaBetaTimer>(AlphaBetaTimer::parse(hardware));
  }
  return std::make_shared<FabricTimer>(load_hardware(hardware).fabric);
}

}  // namespace shardlens::sim
