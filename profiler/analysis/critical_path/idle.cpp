#include "profiler/analysis/critical_path/idle.h"

#include <algorithm>

namespace shardlens::analysis {

IdleCauses::IdleCauses(const trace::Trace& trace,
                       const Timeline& timeline,
                       const Dependencies& dependencies)
    : device_(timeline.device) {
  // Events are sorted by start, so there is an idle gap where the next event begins after all ends
  // so far.
  Nanoseconds busy_until = 0;
  for (size_t i = 0; i < timeline.device_events.size(); ++i) {
    const trace::Event& event = trace.events[timeline.device_events[i].event];
    if (event.duration == 0) {
      continue;
    }
    if (i > 0 && event.start > busy_until) {
      explain(trace, timeline, dependencies, {busy_until, event.start}, i);
    }
    busy_until = i == 0 ? event.end() : std::max(busy_until, event.end());
  }
  host_late_ = host_late_builder_.take();
  event_wait_ = event_wait_builder_.take();
  gap_ = gap_builder_.take();
}

void IdleCauses::explain(const trace::Trace& trace,
                         const Timeline& timeline,
                         const Dependencies& dependencies,
                         const Interval& gap,
                         size_t next) {
  const auto& events = timeline.device_events;
  // If several events end the gap at the same time, take the one that was launched first.
  size_t ending = next;
  const auto launched = [&](size_t i) {
    return events[i].launch == trace::kNoIndex ? gap.end : trace.events[events[i].launch].start;
  };
  for (size_t i = next + 1; i < events.size() && trace.events[events[i].event].start == gap.end;
       ++i) {
    ending = launched(i) < launched(ending) ? i : ending;
  }
  if (events[ending].launch == trace::kNoIndex) {
    return;
  }
  const Interval before{gap.start, std::clamp(launched(ending), gap.start, gap.end)};
  const uint32_t thread = trace.events[events[ending].launch].track;
  const IntervalSet waited = intersect({before}, dependencies.waiting(thread));
  for (const Interval& each : waited) {
    event_wait_builder_.add(each);
  }
  if (before.length() > 0) {
    for (const Interval& each : subtract({before}, waited)) {
      host_late_builder_.add(each);
    }
  }
  const Interval queued{before.end, gap.end};
  const uint32_t source = dependencies.waited_for(ending),
                 previous = dependencies.before_in_stream(ending);
  const auto end = [&](uint32_t i) { return trace.events[events[i].event].end(); };
  const bool held = source != Dependencies::kNone && end(source) > launched(ending) &&
                    (previous == Dependencies::kNone || end(source) > end(previous));
  (held ? event_wait_builder_ : gap_builder_).add(queued);
}

IdleFigures IdleCauses::within(const IntervalSet& window, Nanoseconds idle) const {
  IdleFigures f;
  if (!device_) {
    f.host_late = idle;
    return f;
  }
  for (const Interval& each : window) {
    f.host_late += length_within(host_late_, each);
    f.event_wait += length_within(event_wait_, each);
    f.gap += length_within(gap_, each);
  }
  f.unknown = idle - f.host_late - f.event_wait - f.gap;
  return f;
}

}  // namespace shardlens::analysis
