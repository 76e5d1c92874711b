#include "profiler/analysis/bandwidth.h"

namespace shardlens::analysis {

std::optional<double> bus_factor(CollectiveKind kind, int64_t ranks) {
  if (ranks < 1) {
    return std::nullopt;
  }
  const auto n = static_cast<double>(ranks);
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return (n - 1) / n;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSendRecv:
      return 1;
    case CollectiveKind::kBarrier:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<double> gigabytes_per_second(double bytes, Nanoseconds time) {
  return bytes <= 0 || time <= 0 ? std::nullopt : std::optional(bytes / static_cast<double>(time));
}

}  // namespace shardlens::analysis
