#include "profiler/analysis/critical_path/idle.h"

#include <algorithm>
#include <array>
#include <vector>

namespace shardlens::analysis {
namespace {

// A free stream starts a launched event at latest after this time.
constexpr Nanoseconds kLaunchLatency = 10'000;

}  // namespace

std::string_view name_of(IdleCause cause) {
  constexpr std::string_view kNames[kIdleCauseCount] = {"host_late", "event_wait", "gap",
                                                        "unknown"};
  return kNames[static_cast<size_t>(cause)];
}

std::string_view words_of(IdleCause cause) {
  constexpr std::string_view kWords[kIdleCauseCount] = {"host late", "event wait", "gap",
                                                        "unknown"};
  return kWords[static_cast<size_t>(cause)];
}

IdleCauses::IdleCauses(const trace::Trace& trace,
                       const Timeline& timeline,
                       const Dependencies& dependencies)
    : device_(timeline.device) {
  // Events are sorted by start, so there is an idle gap where the next event begins after all ends
  // so far.
  Nanoseconds busy_until = 0;
  size_t latest = 0;  // the event that ended at busy_until
  for (size_t i = 0; i < timeline.device_events.size(); ++i) {
    const Interval& when = timeline.device_events[i].when;
    if (when.length() == 0) {
      continue;
    }
    if (i > 0 && when.start > busy_until) {
      explain(trace, timeline, dependencies, {busy_until, when.start}, i, latest);
    }
    if (i == 0 || when.end > busy_until) {
      busy_until = when.end;
      latest = i;
    }
  }
  host_late_ = host_late_builder_.take();
  event_wait_ = event_wait_builder_.take();
  gap_ = gap_builder_.take();
  graph_ = graph_builder_.take();
  inferred_ = inferred_builder_.take();
}

void IdleCauses::explain(const trace::Trace& trace,
                         const Timeline& timeline,
                         const Dependencies& dependencies,
                         const Interval& gap,
                         size_t next,
                         size_t latest) {
  const auto& events = timeline.device_events;
  // If several events end the gap at the same time, take the one that was launched first.
  size_t ending = next;
  const auto launched = [&](size_t i) {
    return events[i].launch == trace::kNoIndex ? gap.end : events[i].launched;
  };
  for (size_t i = next + 1; i < events.size() && events[i].when.start == gap.end; ++i) {
    ending = launched(i) < launched(ending) ? i : ending;
  }
  if (events[ending].launch == trace::kNoIndex) {
    return;
  }
  if (events[ending].repeats_launch) {
    event_wait_builder_.add(gap);
    graph_builder_.add(gap);
    return;
  }
  const Interval before{gap.start, std::clamp(launched(ending), gap.start, gap.end)};
  if (before.length() > 0) {
    const IntervalSet waited =
        clip(dependencies.waiting(timeline.place(events[ending]).thread), before);
    for (const Interval& each : waited) {
      event_wait_builder_.add(each);
    }
    if (waited.empty()) {
      host_late_builder_.add(before);
    } else {
      for (const Interval& each : subtract({before}, waited)) {
        host_late_builder_.add(each);
      }
    }
  }
  const Interval queued{before.end, gap.end};
  const uint32_t source = dependencies.waited_for(ending),
                 previous = dependencies.before_in_stream(ending);
  const auto end = [&](uint32_t i) { return events[i].when.end; };
  const bool held = source != Dependencies::kNone && end(source) > launched(ending) &&
                    (previous == Dependencies::kNone || end(source) > end(previous));
  // [Note: Inferred waits] Without cuda_sync rows: an event that was launched, with a free stream,
  // long before the last event of another stream ended, but started only after that, waited for it.
  const auto track = [&](size_t i) { return timeline.place(events[i]).track; };
  const Nanoseconds free = previous == Dependencies::kNone
                               ? launched(ending)
                               : std::max(launched(ending), end(previous));
  const bool inferred = !held && trace.syncs.empty() && track(latest) != track(ending) &&
                        free + kLaunchLatency <= gap.start;
  (held || inferred ? event_wait_builder_ : gap_builder_).add(queued);
  if (inferred) {
    inferred_builder_.add(queued);
  }
}

std::span<const IdleFigureRow> idle_figure_table() {
  static constexpr std::array kRows{
      IdleFigureRow{"host_late_ns", &IdleFigures::host_late},
      IdleFigureRow{"event_wait_ns", &IdleFigures::event_wait},
      IdleFigureRow{"gap_ns", &IdleFigures::gap},
      IdleFigureRow{"unknown_ns", &IdleFigures::unknown},
      IdleFigureRow{"graph_ns", &IdleFigures::graph, false},
      IdleFigureRow{"inferred_ns", &IdleFigures::inferred, false},
  };
  return kRows;
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
    f.graph += length_within(graph_, each);
    f.inferred += length_within(inferred_, each);
  }
  f.unknown = idle - f.host_late - f.event_wait - f.gap;
  return f;
}

std::vector<IdlePart> IdleCauses::parts(const IntervalSet& idle) const {
  std::vector<IdlePart> out;
  IntervalSet rest = idle;
  const auto add = [&](const IntervalSet& known, IdleCause cause) {
    for (const Interval& each : intersect(idle, known)) {
      out.push_back({each, cause});
    }
    rest = subtract(rest, known);
  };
  if (device_) {
    add(host_late_, IdleCause::kHostLate);
    add(event_wait_, IdleCause::kEventWait);
    add(gap_, IdleCause::kGap);
  }
  for (const Interval& each : rest) {
    out.push_back({each, device_ ? IdleCause::kUnknown : IdleCause::kHostLate});
  }
  std::sort(out.begin(), out.end(),
            [](const IdlePart& a, const IdlePart& b) { return a.when.start < b.when.start; });
  return out;
}

}  // namespace shardlens::analysis
