#include "profiler/trace/filter.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "profiler/trace/json/decimal.h"

namespace shardlens::trace {
namespace {

constexpr std::string_view kStepMark = "ProfilerStep#";

bool is_step_mark(const Trace& trace, const Event& event) {
  return event.category == Category::kUserAnnotation && trace.name(event).starts_with(kStepMark);
}

bool is_launch(const Event& event) {
  return event.correlation != 0 && is_runtime_call(event.category);
}

// Whether the event is kept or dropped together with its launch.
bool is_launched(const Event& event) {
  return event.correlation != 0 &&
         (event.category == Category::kKernel || event.category == Category::kGpuMemcpy ||
          event.category == Category::kGpuMemset || event.category == Category::kCudaSync ||
          event.category == Category::kAc2g);
}

}  // namespace

void EventFilter::see(const Trace& trace, const Event& event) {
  if (!filter_.categories.empty()) {
    if (const std::string_view category = trace.category(event); !seen_.contains(category)) {
      seen_.emplace(category);
    }
  }
  if (!filter_.steps) {
    return;
  }
  if (is_launch(event)) {
    launches_.push_back({event.start, event.correlation});
  } else if (is_step_mark(trace, event)) {
    const auto number = scaled_decimal(trace.name(event).substr(kStepMark.size()), 0);
    if (number) {
      steps_.insert(*number);
    }
    if (number && *number >= filter_.steps->first && *number < filter_.steps->second) {
      windows_.emplace_back(event.start, event.end());
    }
  }
}

std::string no_step(const std::pair<int64_t, int64_t>& wanted, const std::set<int64_t>& there) {
  return fmt::format("no step in {}:{}; {}", wanted.first, wanted.second,
                     there.empty()
                         ? "the trace has no steps (ProfilerStep#k)"
                         : fmt::format("the trace has {} to {}", *there.begin(), *there.rbegin()));
}

void EventFilter::decide(const std::string& source) {
  if (!filter_.steps) {
    return;
  }
  if (windows_.empty()) {
    throw InputError(source, no_step(*filter_.steps, steps_));
  }
  std::sort(windows_.begin(), windows_.end());
  size_t last = 0;
  for (size_t i = 1; i < windows_.size(); ++i) {
    if (windows_[i].first <= windows_[last].second) {
      windows_[last].second = std::max(windows_[last].second, windows_[i].second);
    } else {
      windows_[++last] = windows_[i];
    }
  }
  windows_.resize(last + 1);
  for (const Launch& launch : launches_) {
    if (within(launch.start)) {
      launched_.insert(launch.correlation);
    }
  }
  launches_ = {};
}

bool EventFilter::within(Nanoseconds time) const {
  const auto after = std::upper_bound(windows_.begin(), windows_.end(), time,
                                      [](Nanoseconds t, const Window& w) { return t < w.first; });
  return after != windows_.begin() && time < std::prev(after)->second;
}

bool EventFilter::keeps(const Trace& trace, const Event& event) const {
  if (filter_.steps &&
      !(is_launched(event) ? launched_.contains(event.correlation) : within(event.start))) {
    return false;
  }
  return filter_.categories.empty() || is_step_mark(trace, event) ||
         std::find(filter_.categories.begin(), filter_.categories.end(), trace.category(event)) !=
             filter_.categories.end();
}

EventFilter apply(Filter filter, Trace& trace) {
  EventFilter events(std::move(filter));
  for (const Event& event : trace.events) {
    events.see(trace, event);
  }
  events.decide(trace.metadata.source);
  erase_if(trace.events, [&](const Event& event) { return !events.keeps(trace, event); });
  return events;
}

}  // namespace shardlens::trace
