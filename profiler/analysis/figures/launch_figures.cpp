#include "profiler/analysis/figures/launch_figures.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "profiler/analysis/events/sort_runs.h"

namespace shardlens::analysis {
namespace {

// Quantiles of a list, asked for in ascending order: the smallest value with rank ≥ share · n.
// Changes the order of the values.
class Quantiles {
 public:
  explicit Quantiles(std::vector<Nanoseconds>& values) : values_(values), last_(values.begin()) {}
  Nanoseconds of(int64_t percent) {
    const auto n = static_cast<int64_t>(values_.size());
    const auto at = values_.begin() + std::max<int64_t>(0, (n * percent + 99) / 100 - 1);
    std::nth_element(last_, at, values_.end());
    last_ = at;
    return *at;
  }
  [[nodiscard]] Nanoseconds largest() const { return *std::max_element(last_, values_.end()); }

 private:
  std::vector<Nanoseconds>& values_;
  std::vector<Nanoseconds>::iterator last_;  // no value after it is smaller, none before it larger
};

// Calls visit(event) for the device events whose launch is in the trace. A CUDA graph is one
// launch, of its first event; the others wait for each other, not for the host.
template <class Visit>
void for_launched(const Timeline& timeline, Visit visit) {
  for (const DeviceEvent& each : timeline.device_events) {
    if (each.launch != trace::kNoIndex && !each.repeats_launch) {
      visit(each);
    }
  }
}

// Sorts the launches of all streams. Those of one stream are mostly in order already.
std::vector<Nanoseconds> sorted(const std::vector<std::vector<Nanoseconds>>& launches,
                                std::vector<Nanoseconds> memory) {
  memory.clear();
  for (const std::vector<Nanoseconds>& stream : launches) {
    memory.insert(memory.end(), stream.begin(), stream.end());
  }
  sort_runs(memory, std::less<>());
  return memory;
}

}  // namespace

LaunchFigures launch_figures(const trace::Trace& trace,
                             const Timeline& timeline,
                             const IntervalSet& window) {
  LaunchFigures f;
  std::vector<Nanoseconds> latencies, starts;
  latencies.reserve(timeline.device_events.size());
  starts.reserve(timeline.device_events.size());
  NearSet within(window);
  double queued = 0;  // of many launches at once, so their sum may be larger than any time
  // By stream: the times of launches that did not start at once.
  std::vector<std::vector<Nanoseconds>> queued_in(trace.tracks.size());
  for_launched(timeline, [&](const DeviceEvent& each) {
    const Nanoseconds start = each.when.start, launched = each.launched;
    if (within.contains(start)) {
      latencies.push_back(start - launched);
      f.before_launch += start < launched ? 1 : 0;
    }
    if (launched < start) {
      queued_in[timeline.place(each).track].push_back(launched);
      starts.push_back(start);  // sorted, as the events are
      queued += static_cast<double>(within.length_within({launched, start}));
    }
  });
  f.count = static_cast<int64_t>(latencies.size());
  if (latencies.empty()) {
    return f;
  }
  Quantiles quantiles(latencies);
  f.latency_median = quantiles.of(50);
  f.latency_p99 = quantiles.of(99);
  f.latency_max = quantiles.largest();
  const std::vector<Nanoseconds> launches = sorted(queued_in, std::move(latencies));
  size_t started = 0;
  for (size_t i = 0; i < launches.size(); ++i) {
    while (starts[started] <= launches[i]) {
      ++started;
    }
    if (within.contains(launches[i])) {
      f.queue_max = std::max(f.queue_max, static_cast<int64_t>(i + 1 - started));
    }
  }
  const Nanoseconds span = length_of(window);
  f.queue_mean = span == 0 ? 0 : queued / static_cast<double>(span);
  return f;
}

}  // namespace shardlens::analysis
