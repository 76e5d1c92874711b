#include "sim/calibrate/captured_steps.h"

#include <algorithm>

#include "core/base/median.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/fsdp_log/joined_forwards.h"

namespace shardlens::sim {

GraphLaunches::GraphLaunches(const trace::Trace& trace, const analysis::Timeline& timeline) {
  if (timeline.captured) {
    timeline.lists.for_calls_named(trace, analysis::is_graph_launch,
                                   [&](uint32_t i) { times_.push_back(trace.events[i].start); });
  }
  std::ranges::sort(times_);
}

bool GraphLaunches::any_in(const analysis::Step& step) const {
  const auto first = std::ranges::lower_bound(times_, step.host.start);
  return first != times_.end() && *first < step.host.end;
}

std::optional<CapturedSteps> captured_steps(std::span<const trace::Trace> traces,
                                            std::span<const analysis::Timeline> timelines) {
  CapturedSteps out;
  std::vector<Nanoseconds> idle;
  for (size_t rank = 0; rank < timelines.size(); ++rank) {
    const analysis::Timeline& timeline = timelines[rank];
    const GraphLaunches launches(traces[rank], timeline);
    const analysis::IntervalSet busy =
        analysis::unite(analysis::unite(timeline.compute, timeline.copy), timeline.communication);
    const std::vector<Nanoseconds> passes = analysis::training_passes(timelines[rank].fsdp);
    for (const analysis::Step& step : timelines[rank].steps) {
      const auto pass = std::ranges::lower_bound(passes, step.host.start);
      const bool runs_hooks = pass != passes.end() && *pass < step.host.end;
      if (!runs_hooks && launches.any_in(step)) {
        out.durations.push_back(step.window.length());
        idle.push_back(step.window.length() - analysis::length_within(busy, step.window));
      }
    }
  }
  if (out.durations.empty()) {
    return std::nullopt;
  }
  out.idle = median(std::move(idle));
  return out;
}

}  // namespace shardlens::sim
