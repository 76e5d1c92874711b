#include "profiler/analysis/timeline/regions.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/nesting.h"

namespace shardlens::analysis {
namespace {

using trace::Event;
using trace::Trace;

constexpr std::string_view kCompiledForward = "Torch-Compiled Region: ",
                           kCompiledBackward = "CompiledFunctionBackward";

// Of the host, the outermost of each thread, by thread and start.
std::vector<uint32_t> compiled_ranges(const Trace& trace, const Timeline& timeline) {
  std::vector<uint32_t> all, out;
  timeline.lists.for_operators_named(
      trace,
      [](std::string_view name) {
        return name.starts_with(kCompiledForward) || name == kCompiledBackward;
      },
      [&](uint32_t i) { all.push_back(i); });
  sort_by_track_and_start(trace, all);
  for (const uint32_t i : all) {
    const Event& event = trace.events[i];
    const Event* before = out.empty() ? nullptr : &trace.events[out.back()];
    if (before == nullptr || before->track != event.track || before->end() <= event.start) {
      out.push_back(i);
    }
  }
  return out;
}

std::string region_name(std::string_view name) {
  return name == kCompiledBackward
             ? "compiled backward"
             : "compiled " + std::string(name.substr(kCompiledForward.size()));
}

void widen(std::optional<Interval>& hull, const Interval& by) {
  hull = hull ? Interval{std::min(hull->start, by.start), std::max(hull->end, by.end)} : by;
}

}  // namespace

std::vector<Region> regions_of(const Trace& trace, const Timeline& timeline) {
  const std::vector<uint32_t> ranges = compiled_ranges(trace, timeline);
  std::vector<Region> out;
  if (!timeline.device) {
    for (const uint32_t i : ranges) {
      const Event& event = trace.events[i];
      out.push_back({region_name(trace.name(event)), {event.start, event.end()}});
    }
  } else {
    const RangeFinder finder(trace, ranges);
    std::map<uint32_t, std::optional<Interval>> compiled, graphs;  // by range; by launch
    for (const DeviceEvent& each : timeline.device_events) {
      if (each.launch == trace::kNoIndex) {
        continue;
      }
      const Event& launch = trace.events[each.launch];
      if (is_graph_launch(trace.name(launch))) {
        widen(graphs[each.launch], each.when);
      } else if (const auto range = finder.innermost(launch.track, launch.start)) {
        widen(compiled[*range], each.when);
      }
    }
    for (const auto& [range, hull] : compiled) {
      out.push_back({region_name(trace.name(trace.events[range])), *hull});
    }
    for (const auto& [launch, hull] : graphs) {
      out.push_back({"CUDA graph", *hull});
    }
  }
  std::ranges::stable_sort(out, {}, [](const Region& each) { return each.when.start; });
  return out;
}

}  // namespace shardlens::analysis
