#include <algorithm>
#include <optional>
#include <utility>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/near_search.h"
#include "profiler/analysis/timeline/sources.h"

namespace shardlens::analysis {
namespace {

using trace::Event;
using trace::Trace;

// A step's device time begins with the first event that it launched.
void add_device_steps(const std::vector<Step>& marks, Timeline& timeline) {
  std::vector<std::optional<Interval>> launched(marks.size());
  size_t near = 0;
  for (const DeviceEvent& each : timeline.device_events) {
    if (each.launch == trace::kNoIndex) {
      continue;
    }
    near =
        partition_near(marks, near, [&](const Step& s) { return s.window.start <= each.launched; });
    if (near == 0 || each.launched >= marks[near - 1].window.end) {
      continue;
    }
    auto& hull = launched[near - 1];
    hull =
        hull ? Interval{std::min(hull->start, each.when.start), std::max(hull->end, each.when.end)}
             : each.when;
  }
  std::vector<Step> found;
  for (size_t i = 0; i < marks.size(); ++i) {
    if (launched[i]) {
      found.push_back({marks[i].number, *launched[i], marks[i].host});
    } else {
      add_note(timeline, "steps that launched no device event have no figures");
    }
  }
  for (size_t i = 0; i + 1 < found.size(); ++i) {
    // Streams may still run the step's last events when the next step's first event begins: that
    // time belongs to the next step.
    found[i].window.end = std::max(found[i].window.start, found[i + 1].window.start);
  }
  timeline.steps = std::move(found);
}

}  // namespace

std::vector<Step> step_marks(const Sources& sources) {
  const Trace& trace = sources.trace;
  std::vector<Step> marks;
  const auto is_step = [](std::string_view name) { return parse_profiler_step(name).has_value(); };
  sources.lists.for_annotations_named(trace, is_step, [&](uint32_t i) {
    const Event& event = trace.events[i];
    const Interval when = Sources::when(event);
    marks.push_back({*parse_profiler_step(trace.name(event)), when, when});
  });
  std::stable_sort(marks.begin(), marks.end(),
                   [](const Step& a, const Step& b) { return a.window.start < b.window.start; });
  // The profiler's steps do not overlap. In a trace where they do, a step ends where the next one
  // begins, so that time is in one step at most.
  for (size_t i = 0; i + 1 < marks.size(); ++i) {
    marks[i].window.end = std::min(marks[i].window.end, marks[i + 1].window.start);
    marks[i].host = marks[i].window;
  }
  return marks;
}

void add_steps(const Sources& sources, Timeline& timeline) {
  std::vector<Step> marks = step_marks(sources);
  if (marks.empty()) {
    add_note(timeline,
             timeline.device
                 ? "the trace has no steps (ProfilerStep#k)"
                 : "the trace has no steps (ProfilerStep#k): figures cover all operators");
    return;
  }
  // Simulated steps do not overlap, so the host's ProfilerStep ranges apply to the device too. The
  // time in which a step waits for the host before its first event is part of the step.
  if (timeline.device && !sources.trace.metadata.simulated()) {
    add_device_steps(marks, timeline);
    return;
  }
  UnionBuilder windows;
  for (const Step& step : marks) {
    windows.add(step.window);
  }
  timeline.span = windows.take();
  timeline.steps = std::move(marks);
}

}  // namespace shardlens::analysis
