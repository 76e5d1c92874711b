#include "profiler/check/metrics.h"

namespace shardlens::check {
namespace {

constexpr std::array<std::string_view, kMetricCount> kNames{"step_time",
                                                            "exposed_comm",
                                                            "compute",
                                                            "exposed_all_gather_forward",
                                                            "exposed_all_gather_backward",
                                                            "exposed_reduction",
                                                            "exposed_other",
                                                            "exposed_copy",
                                                            "idle_host_late",
                                                            "idle_event_wait",
                                                            "idle_gap",
                                                            "idle_unknown",
                                                            "comm",
                                                            "transfer",
                                                            "peer_wait",
                                                            "prefetch_lead"};

}  // namespace

std::string_view name_of(Metric metric) {
  return kNames[static_cast<size_t>(metric)];
}

std::optional<Metric> parse_metric(std::string_view name) {
  for (size_t i = 0; i < kMetricCount; ++i) {
    if (kNames[i] == name) {
      return static_cast<Metric>(i);
    }
  }
  return std::nullopt;
}

}  // namespace shardlens::check
