#pragma once

#include <algorithm>
#include <vector>

#include "profiler/analysis/events/launches.h"
#include "profiler/analysis/events/name_index.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

// What the parts of make_timeline() share; used by them alone.
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

// Sets of instants as they are filled.
struct Instants {
  explicit Instants(size_t tracks) : busy(tracks) {}
  UnionBuilder compute, copy, communication;
  std::vector<UnionBuilder> busy;  // by track
};

[[nodiscard]] bool is_device(const trace::Event& event);
// A host event that stands for a collective on its communicator.
[[nodiscard]] bool is_host_collective(const Sources& sources, const trace::Event& event);

// Kernels, copies and collectives of a device; sets span, device_events and collectives.
void add_device_events(const Sources& sources, Timeline& timeline, Instants& instants);
// The same of a trace without device events: operators and communicators of the host.
void add_host_events(const Sources& sources, Timeline& timeline, Instants& instants);
// Gives the collectives of a host trace that name no call the c10d call that they serve, and the
// kind that it has.
void match_host_calls(const Sources& sources, Timeline& timeline);
// Steps, and the span where they decide it.
void add_steps(const Sources& sources, Timeline& timeline);
// Unit, part of the step and why it was issued, of each collective whose kind is known.
void attribute_collectives(const Sources& sources, Timeline& timeline);

// Row of Trace::collectives with the event's arguments; kNoIndex: it has none.
[[nodiscard]] uint32_t collective_row(const trace::Trace& trace, const trace::Event& event);

// The collective that `event` is or stands for, with what `args` (may be kNoIndex: none) say.
[[nodiscard]] Collective make_collective(const trace::Trace& trace, uint32_t event, uint32_t args);

void add_note(Timeline& timeline, std::string message, int64_t count = 1);

}  // namespace shardlens::analysis
