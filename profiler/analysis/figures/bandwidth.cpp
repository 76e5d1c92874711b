#include "profiler/analysis/figures/bandwidth.h"

namespace shardlens::analysis {

std::optional<double> gigabytes_per_second(double bytes, Nanoseconds time) {
  return bytes <= 0 || time <= 0 ? std::nullopt : std::optional(bytes / static_cast<double>(time));
}

}  // namespace shardlens::analysis
