#include "sim/cost/fabric_timer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/cost/alpha_beta_timer.h"

namespace shardlens::sim {
namespace {

// Protocols of NCCL in the order of its tables: LL, LL128, Simple. Microseconds.
constexpr std::array<double, 3> kBaseLatency{6.6, 14, 8.4};   // baseLat, ring
constexpr std::array<double, 3> kNvlinkStep{0.6, 1.9, 3.4};   // hwLat NVLINK, ring
constexpr std::array<double, 3> kPcieStep{1.0, 2.5, 5.7};     // hwLat PCI, ring
constexpr std::array<double, 3> kNetworkStep{2.7, 4.0, 9.6};  // hwLat NET, ring (NCCL@01afd20)
constexpr double kLlShare = 0.5;                              // of the bus bandwidth, at most
constexpr double kLl128Share = 0.92;

const CollectiveCurve* curve_of(const FabricSpec& fabric, CollectiveKind kind, int ranks) {
  for (const CollectiveCurve& curve : fabric.curves) {
    if (curve.kind == kind && curve.ranks == ranks) {
      return &curve;
    }
  }
  return nullptr;
}

double interpolate(const CollectiveCurve& curve, Bytes bytes) {
  const auto& points = curve.points;
  if (bytes <= points.front().bytes) {
    return points.front().us;
  }
  auto after = std::lower_bound(
      points.begin(), points.end(), bytes,
      [](const CollectiveCurve::Point& point, Bytes value) { return point.bytes < value; });
  after = after == points.end() ? std::prev(points.end()) : after;
  const auto before = std::prev(after);
  const double slope = (after->us - before->us) / static_cast<double>(after->bytes - before->bytes);
  return before->us + slope * static_cast<double>(bytes - before->bytes);
}

}  // namespace

double FabricTimer::model_us(CollectiveKind kind,
                             int ranks,
                             int ranks_per_node,
                             Bytes larger_message) const {
  const bool twice = kind == CollectiveKind::kAllReduce;  // a reduce-scatter and an all-gather
  const int nodes = ranks / ranks_per_node;
  const double steps = (twice ? 2.0 : 1.0) * (ranks - 1);
  const double between = (twice ? 2.0 : 1.0) * (nodes - 1);
  const double ratio = kind == CollectiveKind::kReduceScatter ? fabric_.reduce_scatter_ratio : 1.0;
  double bus = fabric_.ring_gbps * ratio;
  if (nodes > 1) {
    bus = std::min(bus, fabric_.network_gbps * ranks_per_node);
  }
  const std::array<double, 3> of_protocol{std::min(fabric_.ll_gbps, kLlShare * bus),
                                          kLl128Share * bus, bus};
  const auto& step = fabric_.link == Link::kNvlink ? kNvlinkStep : kPcieStep;
  double best = 0;
  for (size_t protocol = 0; protocol < of_protocol.size(); ++protocol) {
    const double algorithm_gbps = of_protocol[protocol] * ranks / steps;
    const double us = kBaseLatency[protocol] + (steps - between) * step[protocol] +
                      between * kNetworkStep[protocol] +
                      static_cast<double>(larger_message) / (algorithm_gbps * 1e3);
    best = protocol == 0 ? us : std::min(best, us);
  }
  return best;
}

Nanoseconds FabricTimer::duration(CollectiveKind kind, int ranks, Bytes larger_message) const {
  if (ranks <= 1) {
    return 0;
  }
  const CollectiveCurve* curve = curve_of(fabric_, kind, ranks);
  const double us = curve != nullptr ? interpolate(*curve, larger_message)
                                     : model_us(kind, ranks, ranks, larger_message);
  return std::llround(std::max(us, 0.0) * 1e3);
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
