#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "profiler/analysis/events/event_lists.h"
#include "profiler/analysis/events/launches.h"
#include "profiler/analysis/events/name_index.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

// Shared by the parts of make_timeline(), and used only by them.
namespace shardlens::analysis {

// The sizes of a trace's process groups.
class GroupSizes {
 public:
  explicit GroupSizes(const trace::Trace& trace);
  // Index of the first group with this name in the trace's list; kNoIndex: not listed.
  [[nodiscard]] uint32_t listed(std::string_view name) const;
  // The size of every group; 0 if they differ in size or are not known.
  [[nodiscard]] int64_t of_all() const { return of_all_; }
  // The size of the group with this name; of_all() if it is not listed.
  [[nodiscard]] int64_t of(std::string_view name) const;

 private:
  struct Group {
    int64_t size = 0;
    uint32_t listed = trace::kNoIndex;
  };
  int64_t of_all_;
  std::map<std::string, Group, std::less<>> by_name_;
};

struct Sources {  // a trace, and indexes of it that are made once
  const trace::Trace& trace;
  const EventLists& lists;
  NameIndex names;
  LaunchIndex launches;
  GroupSizes sizes;
  const trace::PlannedInputs* planned;  // nullptr: not known

  Sources(const trace::Trace& from, const EventLists& events, const TimelineOptions& options)
      : trace(from),
        lists(events),
        names(from, options.communication.get()),
        launches(events.calls),
        sizes(from),
        planned(options.planned) {}

  [[nodiscard]] static Interval when(const trace::Event& event) {
    return {event.start, event.end()};
  }
};

// Adds places to a timeline, each once.
class PlaceIndex {
 public:
  explicit PlaceIndex(size_t tracks) : latest_(tracks, trace::kNoIndex) {}
  // Index of the place in `places`; added if new. Complexity: O(1) if the track's last place was
  // the same, otherwise logarithmic in the places.
  [[nodiscard]] uint32_t of(const Place& place, std::vector<Place>& places);

 private:
  std::vector<uint32_t> latest_;  // by track
  std::map<std::tuple<uint32_t, uint32_t, Section, uint32_t, Basis>, uint32_t> index_;
};

// The timeline's sets of instants while they are built.
struct Instants {
  UnionBuilder compute, copy, communication;
};

// Whether a host event represents a collective on its communicator.
[[nodiscard]] bool is_host_collective(const Sources& sources, const trace::Event& event);

// Adds kernels, copies and collectives of a device; sets span, device_events and collectives.
void add_device_events(const Sources& sources, Timeline& timeline, Instants& instants);
// The same for a trace without device events: adds operators and collectives of the host.
void add_host_events(const Sources& sources, Timeline& timeline, Instants& instants);
// For collectives of a host trace without arguments: finds the c10d call that issued each, and sets
// its kind from it.
void match_host_calls(const Sources& sources, Timeline& timeline);
// The host's ranges ProfilerStep#k, by start; windows are those of the host.
[[nodiscard]] std::vector<Step> step_marks(const Sources& sources);
// Adds the steps; sets the span if the trace has steps.
void add_steps(const Sources& sources, Timeline& timeline);
// Sets the unit, the part of the step and the cause of each collective, as far as known, and the
// purpose of those that FSDP or DDP issued.
void attribute_collectives(const Sources& sources, Timeline& timeline);

// Sets unit, module, purpose and Basis of the collectives with which a program gathers its own
// parameters and reduces their gradients (Trace::sharded_parameters), without FSDP or DDP. Before
// attribute_collectives().
void attribute_program_collectives(const Sources& sources, Timeline& timeline);

// Sets the group, and its size, of collectives that do not name theirs, where only one group of the
// trace's list fits. After attribute_collectives().
void infer_groups(const Sources& sources, Timeline& timeline);

// Sets the purpose of the collectives that neither FSDP nor DDP issued. After infer_groups().
void find_purposes(const Sources& sources, Timeline& timeline);

// Row of Trace::collectives with the event's arguments; kNoIndex: no arguments.
[[nodiscard]] uint32_t collective_row(const trace::Trace& trace, const trace::Event& event);

// The collective that event `index` represents, with the arguments in row `args_index` (kNoIndex:
// none).
[[nodiscard]] Collective make_collective(const trace::Trace& trace,
                                         const GroupSizes& sizes,
                                         uint32_t index,
                                         uint32_t args_index);

void add_note(Timeline& timeline, std::string message, int64_t count = 1);

}  // namespace shardlens::analysis
