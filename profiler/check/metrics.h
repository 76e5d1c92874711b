#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardlens::check {

// What is measured for a run, in nanoseconds per step. The first two can gate, the others explain:
// docs/metrics.md, "check and compare".
enum class Metric : uint8_t {
  kStepTime,
  kExposedComm,
  // Parts of the step time, measured on the same steps and ranks:
  kCompute,
  kExposedAllGatherForward,
  kExposedAllGatherBackward,
  kExposedReduction,
  kExposedOther,
  kExposedCopy,
  kIdleHostLate,
  kIdleEventWait,
  kIdleGap,
  kIdleUnknown,
  // Not parts of the step time:
  kComm,
  kTransfer,
  kPeerWait,
  kPrefetchLead,
};
inline constexpr size_t kMetricCount = 16, kGatingMetrics = 2;
inline constexpr std::array<Metric, kGatingMetrics> kGates{Metric::kStepTime, Metric::kExposedComm};

[[nodiscard]] std::string_view name_of(Metric metric);  // "step_time", …
[[nodiscard]] std::optional<Metric> parse_metric(std::string_view name);
[[nodiscard]] constexpr bool gates(Metric metric) {
  return metric == Metric::kStepTime || metric == Metric::kExposedComm;
}
// Whether a larger value is worse; for the prefetch lead a smaller value is worse.
[[nodiscard]] constexpr bool more_is_worse(Metric metric) {
  return metric != Metric::kPrefetchLead;
}

// By Metric; nullopt if the traces do not contain it.
using MetricValues = std::array<std::optional<double>, kMetricCount>;

}  // namespace shardlens::check
