#include "profiler/analysis/overlap/launch_figures.h"

#include <algorithm>
#include <vector>

namespace shardlens::analysis {
namespace {

// The quantile: the smallest value with rank ≥ share · n. Changes the order of the values.
Nanoseconds quantile(std::vector<Nanoseconds>& values, int64_t percent) {
  const auto n = static_cast<int64_t>(values.size());
  const auto at = values.begin() + std::max<int64_t>(0, (n * percent + 99) / 100 - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

LaunchFigures launch_figures(const trace::Trace& trace,
                             const Timeline& timeline,
                             const IntervalSet& window) {
  LaunchFigures f;
  std::vector<Nanoseconds> latencies, launches, starts;
  latencies.reserve(timeline.device_events.size());
  starts.reserve(timeline.device_events.size());
  size_t near = 0;
  double queued = 0;  // of many launches at once, so their sum may be larger than any time
  // A CUDA graph is one launch, of its first event; the others wait for each other, not for the
  // host.
  std::vector<bool> seen(trace.events.size()), queues(trace.events.size());
  for (const DeviceEvent& each : timeline.device_events) {
    if (each.launch == trace::kNoIndex || seen[each.launch]) {
      continue;
    }
    seen[each.launch] = true;
    const Nanoseconds start = each.when.start, launched = each.launched;
    if (contains(window, start)) {
      latencies.push_back(start - launched);
      f.before_launch += start < launched ? 1 : 0;
    }
    if (launched < start) {
      queues[each.launch] = true;
      starts.push_back(start);  // sorted, as the events are
      queued += static_cast<double>(length_within(window, {launched, start}, near));
    }
  }
  f.count = static_cast<int64_t>(latencies.size());
  if (latencies.empty()) {
    return f;
  }
  f.latency_median = quantile(latencies, 50);
  f.latency_p99 = quantile(latencies, 99);
  f.latency_max = *std::max_element(latencies.begin(), latencies.end());
  launches.reserve(starts.size());
  for (const uint32_t call : timeline.lists.calls) {  // mostly in order of time
    if (queues[call]) {
      launches.push_back(trace.events[call].start);
    }
  }
  if (!std::is_sorted(launches.begin(), launches.end())) {
    std::sort(launches.begin(), launches.end());
  }
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
