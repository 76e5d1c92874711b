#include "profiler/analysis/overlap/launch_figures.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace shardlens::analysis {
namespace {

// The quantile: the smallest value with rank ≥ share · n.
Nanoseconds quantile(const std::vector<Nanoseconds>& sorted, int64_t percent) {
  const auto n = static_cast<int64_t>(sorted.size());
  return sorted[static_cast<size_t>(std::max<int64_t>(0, (n * percent + 99) / 100 - 1))];
}

}  // namespace

LaunchFigures launch_figures(const trace::Trace& trace,
                             const Timeline& timeline,
                             const IntervalSet& window) {
  LaunchFigures f;
  std::vector<Nanoseconds> latencies, launches, starts;
  double queued = 0;  // of many launches at once, so their sum may be larger than any time
  // A CUDA graph is one launch, of its first event; the others wait for each other, not for the
  // host.
  std::unordered_set<uint32_t> seen;
  for (const DeviceEvent& each : timeline.device_events) {
    if (each.launch == trace::kNoIndex || !seen.insert(each.launch).second) {
      continue;
    }
    const Nanoseconds start = trace.events[each.event].start,
                      launched = trace.events[each.launch].start;
    if (contains(window, start)) {
      latencies.push_back(start - launched);
      f.before_launch += start < launched ? 1 : 0;
    }
    if (launched < start) {
      launches.push_back(launched);
      starts.push_back(start);
      queued += static_cast<double>(length_within(window, {launched, start}));
    }
  }
  f.count = static_cast<int64_t>(latencies.size());
  if (latencies.empty()) {
    return f;
  }
  std::sort(latencies.begin(), latencies.end());
  f.latency_median = quantile(latencies, 50);
  f.latency_p99 = quantile(latencies, 99);
  f.latency_max = latencies.back();
  std::sort(launches.begin(), launches.end());
  std::sort(starts.begin(), starts.end());
  size_t started = 0;
  for (size_t i = 0; i < launches.size(); ++i) {
    while (starts[started] <= launches[i]) {
      ++started;
    }
    if (contains(window, launches[i])) {
      f.queue_max = std::max(f.queue_max, static_cast<int64_t>(i + 1 - started));
    }
  }
  const Nanoseconds span = length_of(window);
  f.queue_mean = span == 0 ? 0 : queued / static_cast<double>(span);
  return f;
}

}  // namespace shardlens::analysis
