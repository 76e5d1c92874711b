#include "profiler/analysis/timeline/functional_waits.h"

#include <algorithm>
#include <deque>
#include <string_view>

namespace shardlens::analysis {

using trace::Event;
using trace::Trace;

namespace {

struct WaitOrCall {
  Nanoseconds at = 0;
  uint32_t event = 0;                // of the wait, or of the collective
  const Collective* call = nullptr;  // nullptr: a wait
  int64_t elements = -1;             // of the tensor; -1: not in the trace
};

// Of the tensor that the collective returns.
int64_t elements_of_result(const Trace& trace, const Collective& c) {
  if (c.args != trace::kNoIndex) {
    return trace.collectives[c.args].out_nelems;
  }
  return call_size(trace, trace.events[c.issuer]).out;
}

}  // namespace

FunctionalWaits::FunctionalWaits(const Sources& sources, const Timeline& timeline)
    : trace_(sources.trace), timeline_(timeline) {
  std::vector<WaitOrCall> all;
  sources.lists.for_operators_named(
      trace_, [](std::string_view name) { return name == "_c10d_functional::wait_tensor"; },
      [&](uint32_t i) {
        const Event& event = trace_.events[i];
        all.push_back({event.start, i, nullptr, call_size(trace_, event).out});
      });
  if (all.empty()) {
    return;
  }
  // Without shapes the order of the calls has to do.
  const bool sized = std::ranges::any_of(all, [](const auto& wait) { return wait.elements >= 0; });
  for (const Collective& c : timeline.collectives) {
    if (c.issuer != trace::kNoIndex) {
      all.push_back(
          {trace_.events[c.issuer].start, c.event, &c, sized ? elements_of_result(trace_, c) : -1});
    }
  }
  std::ranges::stable_sort(all, {}, &WaitOrCall::at);
  std::map<int64_t, std::deque<const Collective*>> open;  // by elements
  for (const WaitOrCall& each : all) {
    std::deque<const Collective*>& alike = open[each.elements];
    if (each.call != nullptr) {
      alike.push_back(each.call);
    } else if (!alike.empty()) {
      waits_.emplace(alike.front()->event, each.event);
      alike.pop_front();
    }
  }
  std::vector<Nanoseconds> ends(trace_.tracks.size());
  for (const DeviceEvent& each : timeline.device_events) {
    const Place& place = timeline.place(each);
    Nanoseconds& end = ends[place.track];
    if (each.nature != Nature::kCommunication && each.launch != trace::kNoIndex) {
      launched_.push_back({each.launched, std::max(each.launched, end), place.thread});
    }
    end = std::max(end, each.when.end);
  }
  std::ranges::stable_sort(launched_, {}, &Launched::launched);
}

uint32_t FunctionalWaits::event_of(const Collective& c) const {
  const auto wait = waits_.find(c.event);
  return wait == waits_.end() ? trace::kNoIndex : wait->second;
}

std::optional<Nanoseconds> FunctionalWaits::begin(const Collective& c) const {
  const uint32_t wait = event_of(c);
  return wait == trace::kNoIndex ? std::nullopt : std::optional(trace_.events[wait].start);
}

std::optional<Nanoseconds> FunctionalWaits::after(const Collective& c) const {
  const uint32_t wait = event_of(c);
  if (wait == trace::kNoIndex) {
    return std::nullopt;
  }
  const Event& event = trace_.events[wait];
  return timeline_.device ? ready_after(event.track, event.start) : std::optional(event.start);
}

std::optional<Nanoseconds> FunctionalWaits::ready_after(uint32_t track, Nanoseconds waited) const {
  auto next = std::ranges::lower_bound(launched_, waited, {}, &Launched::launched);
  while (next != launched_.end() && next->thread != track) {
    ++next;
  }
  return next == launched_.end() ? std::nullopt : std::optional(next->ready);
}

}  // namespace shardlens::analysis
