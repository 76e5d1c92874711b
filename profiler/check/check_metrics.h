#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace shardlens::check {

// What is measured of a run, in nanoseconds per step: a row of metric_table().
// docs/reference/metrics.md, "check and compare".
enum class Metric : uint8_t {
  kStepTime,
  kExposedComm,
  // Parts of the step time, taken from the same steps and ranks:
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
  kFirstOfFigures,  // from here on: rows of analysis::figure_table() that name a metric of their
                    // own
};

// What a part of the step time consists of.
enum class StepPart : uint8_t { kNone, kCompute, kExposed, kCopy, kIdle };

struct MetricRow {  // properties of a metric
  std::string_view name;
  bool gates = false;  // it may decide the verdict; the others explain it
  StepPart part = StepPart::kNone;
  std::string_view label = "";  // of a part, for people
};

// By Metric.
[[nodiscard]] std::span<const MetricRow> metric_table();
[[nodiscard]] std::string_view name_of(Metric metric);  // "step_time", …
[[nodiscard]] std::optional<Metric> parse_metric(std::string_view name);

// By Metric; nullopt where the traces do not tell.
class MetricValues {
 public:
  MetricValues() : values_(metric_table().size()) {}
  [[nodiscard]] std::optional<double>& operator[](Metric metric) {
    return values_[static_cast<size_t>(metric)];
  }
  [[nodiscard]] const std::optional<double>& operator[](Metric metric) const {
    return values_[static_cast<size_t>(metric)];
  }

 private:
  std::vector<std::optional<double>> values_;
};

}  // namespace shardlens::check
