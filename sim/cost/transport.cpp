#include "sim/cost/transport.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <span>

#include <fmt/format.h>

namespace shardlens::sim {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 3> kNames{"ring", "symmetric", "copy_engine"};

struct Measured {
  double mib = 0, speedup = 1;
};

// See [Note: Transports]. Times in microseconds, ring and symmetric.
constexpr std::array<Measured, 5> kAllGather{
    {{2, 20.2 / 10.9}, {8, 43.4 / 27.4}, {32, 118.9 / 95.3}, {128, 385.3 / 363.2}, {256, 1}}};
constexpr std::array<Measured, 4> kReduceScatter{
    {{2, 18.6 / 10.8}, {8, 47.0 / 28.8}, {32, 112.6 / 100.5}, {256, 1}}};

// NCCL's estimate of its symmetric kernels, see sms_of(): a block's bandwidth, that of many (2^30
// bytes per second), and the most blocks, divided by the number of ranks. With multicast a block
// moves 0.55 times the number of ranks as much; two ranks have none.
struct SymmetricKernels {
  double block_gbps = 0, peak_gbps = 0;
  int64_t most_blocks = 0;
};
constexpr SymmetricKernels kOnHopper{44, 320, 16}, kOnBlackwell{55, 600, 32};
constexpr double kMulticastGain = 0.55;
constexpr int64_t kLeastMulticast = 2;
constexpr double kHopperLlGbps = 141;  // NCCL's llMaxBws of the architecture; 282 on Blackwell

double interpolated(std::span<const Measured> table, Bytes bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  const auto after = std::find_if(table.begin(), table.end(),
                                  [mib](const Measured& each) { return each.mib > mib; });
  if (after == table.begin() || after == table.end()) {
    return after == table.end() ? table.back().speedup : table.front().speedup;
  }
  const Measured &low = *std::prev(after), &high = *after;
  const double share = std::log2(mib / low.mib) / std::log2(high.mib / low.mib);
  return low.speedup + share * (high.speedup - low.speedup);
}

}  // namespace

double transport_speedup(Transport transport, CollectiveKind kind, Bytes bytes) {
  if (transport == Transport::kRing || on_copy_engines(transport, kind)) {
    return 1;
  }
  return kind == CollectiveKind::kAllGather       ? interpolated(kAllGather, bytes)
         : kind == CollectiveKind::kReduceScatter ? interpolated(kReduceScatter, bytes)
                                                  : 1;
}

// NCCL takes the fewest blocks whose bandwidth is within 2.5 % of that of the most.
int64_t sms_of(const HardwareSpec& spec) {
  if (spec.fabric.transport == Transport::kRing || spec.gpus <= kLeastMulticast) {
    return spec.fabric.sms;
  }
  const SymmetricKernels& of = spec.fabric.ll_gbps > kHopperLlGbps ? kOnBlackwell : kOnHopper;
  const auto rate = [&](int64_t blocks) {
    const double sum = static_cast<double>(blocks * spec.gpus) * kMulticastGain * of.block_gbps;
    return of.peak_gbps - of.block_gbps * std::log1p(std::expm1(of.peak_gbps / of.block_gbps) *
                                                     std::exp(-sum / of.block_gbps));
  };
  const int64_t most = (of.most_blocks + spec.gpus - 1) / spec.gpus;
  int64_t blocks = 1;
  while (rate(most) > 1.025 * rate(blocks)) {
    ++blocks;
  }
  return blocks;
}

bool on_copy_engines(Transport transport, CollectiveKind kind) {
  return transport == Transport::kCopyEngine && kind == CollectiveKind::kAllGather;
}

std::string_view name_of(Transport transport) {
  return kNames[static_cast<size_t>(transport)];
}

std::optional<Transport> transport_named(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  return found == kNames.end() ? std::nullopt
                               : std::optional(static_cast<Transport>(found - kNames.begin()));
}

std::string refusal_of(Transport transport, const HardwareSpec& spec) {
  return transport == Transport::kRing || spec.fabric.nvls_gbps > 0
             ? std::string()
             : fmt::format(
                   "{}: measured only on GPUs with NVLink SHARP, which {} does not have (no "
                   "\"nvls_gbps\" in its fabric)",
                   name_of(transport), spec.name);
}

}  // namespace shardlens::sim
