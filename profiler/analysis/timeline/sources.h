#pragma once

#include <algorithm>
#include <vector>

#include "profiler/analysis/events/launches.h"
#include "profiler/analysis/events/name_index.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

// Shared by the parts of make_timeline(), and used only by them.
namespace shardlens::analysis {

struct Sources {
  const trace::Trace& trace;
  NameIndex names;
  LaunchIndex launches;

  Sources(const trace::Trace& from, const TimelineOptions& options)
      : trace(from), names(from, options.communication), launches(from) {}

  [[nodiscard]] static Interval when(const trace::Event& event) {
    return {event.start, event.end()};
  }
};

// The timeline's sets of instants while they are built.
struct Instants {
  explicit Instants(size_t tracks) : busy(tracks) {}
  UnionBuilder compute, copy, communication;
  std::vector<UnionBuilder> busy;  // by track
};

[[nodiscard]] bool is_device(const trace::Event& event);
// Whether a host event represents a collective on its communicator.
[[nodiscard]] bool is_host_collective(const Sources& sources, const trace::Event& event);

// Adds kernels, copies and collectives of a device; sets span, device_events and collectives.
void add_device_events(const Sources& sources, Timeline& timeline, Instants& instants);
// The same for a trace without device events: adds operators and collectives of the host.
void add_host_events(const Sources& sources, Timeline& timeline, Instants& instants);
// For collectives of a host trace without arguments: finds the c10d call that issued each, and sets
// its kind from it.
void match_host_calls(const Sources& sources, Timeline& timeline);
// Adds the steps; sets the span if the trace has steps.
void add_steps(const Sources& sources, Timeline& timeline);
// Sets the unit, the part of the step and the cause of each collective, as far as known.
void attribute_collectives(const Sources& sources, Timeline& timeline);

// Row of Trace::collectives with the event's arguments; kNoIndex: no arguments.
[[nodiscard]] uint32_t collective_row(const trace::Trace& trace, const trace::Event& event);

// The collective that event `index` represents, with the arguments in row `args_index` (kNoIndex:
// none).
[[nodiscard]] Collective make_collective(const trace::Trace& trace,
                                         uint32_t index,
                                         uint32_t args_index);

void add_note(Timeline& timeline, std::string message, int64_t count = 1);

}  // namespace shardlens::analysis
