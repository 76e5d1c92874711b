#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardlens::check {

// What is measured of a run, in nanoseconds per step. The first two gate, the others explain:
// docs/metrics.md, "check and compare".
enum class Metric : uint8_t {
  kStepTime,
  kExposedComm,
  // Of the steps and ranks that make up the step time, so that they are parts of it:
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
  // Not parts of it:
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
// Whether more of it is worse; less lead is.
[[nodiscard]] constexpr bool more_is_worse(Metric metric) {
  return metric != Metric::kPrefetchLead;
}

// By Metric; nullopt where the traces do not tell.
using MetricValues = std::array<std::optional<double>, kMetricCount>;

}  // namespace shardlens::check
