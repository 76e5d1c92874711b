#include "profiler/analysis/critical_path.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace shardlens::analysis {
namespace {

using trace::Event;
using trace::kNoIndex;
using trace::Trace;

Bound bound_of(Nature nature) {
  return nature == Nature::kCompute         ? Bound::kCompute
         : nature == Nature::kCommunication ? Bound::kCommunication
                                            : Bound::kCopy;
}

// Walks one step back from its end. `at` is the instant up to which the path is known.
class Walk {
 public:
  Walk(const Trace& trace,
       const Timeline& timeline,
       const Dependencies& dependencies,
       const Step& step,
       CriticalPath& out)
      : trace_(trace),
        timeline_(timeline),
        dependencies_(dependencies),
        window_(step.window),
        out_(out),
        at_(step.window.end) {}

  void run() {
    std::optional<size_t> next = last_event();
    while (next && at_ > window_.start) {
      next = before(*next);
    }
    spend(Bound::kIdle, window_.start, kNoIndex);
    std::reverse(out_.segments.begin(), out_.segments.end());
  }

 private:
  [[nodiscard]] const Event& event(size_t i) const {
    return trace_.events[timeline_.device_events[i].event];
  }

  // The path from `from` to where it is known so far.
  void spend(Bound bound, Nanoseconds from, uint32_t by) {
    from = std::max(from, window_.start);
    if (from >= at_) {
      return;
    }
    out_.segments.push_back({{from, at_}, bound, by});
    out_.lengths[static_cast<size_t>(bound)] += at_ - from;
    at_ = from;
  }

  // Where the walk begins: the event that begins the next step, if there is one, since the step
  // ends where that could start; else what ends last.
  std::optional<size_t> last_event() {
    const auto& events = timeline_.device_events;
    const auto begin = std::partition_point(
        events.begin(), events.end(),
        [&](const DeviceEvent& e) { return trace_.events[e.event].start < window_.end; });
    std::optional<size_t> last;
    for (auto i = static_cast<size_t>(begin - events.begin()); i-- > 0;) {
      if (event(i).end() <= window_.start && last) {
        break;
      }
      if (!last ||
          std::min(event(i).end(), window_.end) > std::min(event(*last).end(), window_.end)) {
        last = i;
      }
      if (event(i).end() >= window_.end) {
        break;
      }
    }
    if (begin != events.end() && trace_.events[begin->event].start == window_.end &&
        (!last || event(*last).end() < window_.end)) {
      return reason(static_cast<size_t>(begin - events.begin()));
    }
    return last;
  }

  // Takes event `i` onto the path; returns what it had to wait for.
  std::optional<size_t> before(size_t i) {
    if (event(i).end() < at_) {
      spend(Bound::kIdle, event(i).end(), kNoIndex);
    }
    spend(bound_of(timeline_.device_events[i].nature), event(i).start,
          timeline_.device_events[i].event);
    return reason(i);
  }

  // The path up to the latest of what event `i` waited for: its stream, an event of another one, or
  // its launch. nullopt: the path leaves the step, or there is no reason in the trace.
  std::optional<size_t> reason(size_t i) {
    const uint32_t stream = dependencies_.before_in_stream(i), source = dependencies_.waited_for(i);
    uint32_t device = stream;
    if (source != Dependencies::kNone && event(source).start < event(i).start &&
        (device == Dependencies::kNone || event(source).end() > event(device).end())) {
      device = source;
    }
    const uint32_t launch = timeline_.device_events[i].launch;
    if (launch != kNoIndex) {
      const Nanoseconds called = std::min(trace_.events[launch].start, at_);
      if (device == Dependencies::kNone || event(device).end() <= called) {
        spend(Bound::kLaunch, called, launch);
        return host();
      }
    }
    if (device == Dependencies::kNone) {
      return std::nullopt;
    }
    // Events of one stream may overlap: then the earlier one holds until this one begins.
    spend(Bound::kIdle, std::min(event(device).end(), at_), kNoIndex);
    return device;
  }

  // The host's own time, back to where it last waited for the device.
  std::optional<size_t> host() {
    const auto& waits = dependencies_.host_waits();
    auto it = std::upper_bound(
        waits.begin(), waits.end(), at_,
        [](Nanoseconds t, const Dependencies::HostWait& w) { return t < w.when.end; });
    while (it != waits.begin()) {
      --it;
      if (it->when.end <= window_.start) {
        break;
      }
      if (it->until != Dependencies::kNone && event(it->until).end() < at_) {
        spend(Bound::kHost, event(it->until).end(), kNoIndex);
        return it->until;
      }
    }
    spend(Bound::kHost, window_.start, kNoIndex);
    return std::nullopt;
  }

  const Trace& trace_;
  const Timeline& timeline_;
  const Dependencies& dependencies_;
  Interval window_;
  CriticalPath& out_;
  Nanoseconds at_;
};

// On a CPU the host is the path: it computes, copies, or waits for communication.
void host_path(const Timeline& timeline, const Step& step, CriticalPath& out) {
  const IntervalSet compute = clip(timeline.compute, step.window);
  const IntervalSet comm = subtract(clip(timeline.communication, step.window), compute);
  const IntervalSet copy = subtract(subtract(clip(timeline.copy, step.window), compute), comm);
  const IntervalSet host =
      subtract(subtract(subtract(union_of({step.window}), compute), comm), copy);
  const auto add = [&](const IntervalSet& set, Bound bound) {
    for (const Interval& each : set) {
      out.segments.push_back({each, bound, kNoIndex});
      out.lengths[static_cast<size_t>(bound)] += each.length();
    }
  };
  add(compute, Bound::kCompute);
  add(comm, Bound::kCommunication);
  add(copy, Bound::kCopy);
  add(host, Bound::kHost);
  std::sort(out.segments.begin(), out.segments.end(),
            [](const PathSegment& a, const PathSegment& b) { return a.when.start < b.when.start; });
}

}  // namespace

std::string_view name_of(Bound bound) {
  constexpr std::string_view kNames[] = {"compute", "communication", "copy",
                                         "host",    "launch",        "idle"};
  return kNames[static_cast<size_t>(bound)];
}

Bound CriticalPath::bound() const {
  return static_cast<Bound>(std::max_element(lengths.begin(), lengths.end()) - lengths.begin());
}

std::vector<PathPart> CriticalPath::parts(const Trace& trace) const {
  std::map<std::pair<Bound, trace::StringId>, PathPart> sums;
  for (const PathSegment& segment : segments) {
    const trace::StringId name =
        segment.event == kNoIndex ? trace::kEmptyString : trace.events[segment.event].name;
    PathPart& part = sums[{segment.bound, name}];
    part.bound = segment.bound;
    ++part.count;
    part.length += segment.when.length();
  }
  std::vector<PathPart> out;
  for (auto& [key, part] : sums) {
    part.name = trace.strings.view(key.second);
    out.push_back(std::move(part));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const PathPart& a, const PathPart& b) { return a.length > b.length; });
  return out;
}

std::vector<CriticalPath> critical_paths(const Trace& trace,
                                         const Timeline& timeline,
                                         const Dependencies& dependencies) {
  std::vector<CriticalPath> out;
  for (const Step& step : timeline.steps) {
    CriticalPath& path = out.emplace_back();
    path.step = step.number;
    if (timeline.device) {
      Walk(trace, timeline, dependencies, step, path).run();
    } else {
      host_path(timeline, step, path);
    }
  }
  return out;
}

}  // namespace shardlens::analysis
