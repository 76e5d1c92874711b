#include "profiler/analysis/timeline/timeline.h"

#include <algorithm>
#include <utility>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/sort_runs.h"
#include "profiler/analysis/timeline/captured_work.h"
#include "profiler/analysis/timeline/device_choice.h"
#include "profiler/analysis/timeline/sources.h"

namespace shardlens::analysis {

using trace::Category;
using trace::Event;
using trace::EventPhase;
using trace::Trace;

uint32_t PlaceIndex::of(const Place& place, std::vector<Place>& places) {
  uint32_t& latest = latest_[place.track];
  if (latest == trace::kNoIndex || places[latest].thread != place.thread ||
      places[latest].basis != place.basis || !(places[latest].owner == place.owner)) {
    const auto [found, fresh] = index_.try_emplace(
        {place.track, place.thread, place.owner.section, place.owner.unit, place.basis},
        static_cast<uint32_t>(places.size()));
    if (fresh) {
      places.push_back(place);
    }
    latest = found->second;
  }
  return latest;
}

bool is_host_collective(const Sources& sources, const Event& event) {
  return event.phase == EventPhase::kComplete && (event.category == Category::kCommunication ||
                                                  (event.category == Category::kUserAnnotation &&
                                                   sources.names.of(event).is_c10d_annotation));
}

void add_note(Timeline& timeline, std::string message, int64_t count) {
  trace::add_diagnostic(timeline.diagnostics, trace::Severity::kNote, std::move(message), count);
}

uint32_t collective_row(const Trace& trace, const Event& event) {
  const trace::CollectiveArgs* args = trace.collective(event);
  return args == nullptr ? trace::kNoIndex : static_cast<uint32_t>(args - trace.collectives.data());
}

// The size of every process group; 0 if they differ in size or are not known.
static int64_t size_of_groups(const Trace& trace) {
  const auto& groups = trace.metadata.groups;
  const bool same = std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
    return group.size == groups.front().size;
  });
  return groups.empty() || !same ? 0 : std::max<int64_t>(0, groups.front().size);
}

GroupSizes::GroupSizes(const Trace& trace) : of_all_(size_of_groups(trace)) {
  for (uint32_t i = 0; i < trace.metadata.groups.size(); ++i) {
    const trace::ProcessGroup& group = trace.metadata.groups[i];
    Group& known = by_name_[group.name];
    known.size = std::max<int64_t>(0, group.size);
    known.listed = std::min(known.listed, i);
  }
}

uint32_t GroupSizes::listed(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? trace::kNoIndex : found->second.listed;
}

int64_t GroupSizes::of(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? of_all_ : found->second.size;
}

Collective make_collective(const Trace& trace,
                           const GroupSizes& sizes,
                           uint32_t index,
                           uint32_t args_index) {
  const Event& event = trace.events[index];
  Collective c;
  c.event = index;
  c.when = {event.start, event.end()};
  c.track = event.track;
  c.args = args_index;
  c.ranks = sizes.of_all();
  if (args_index == trace::kNoIndex) {
    return c;
  }
  const trace::CollectiveArgs& args = trace.collectives[args_index];
  if (args.collective != trace::kEmptyString) {
    c.kind = parse_collective(trace.strings.view(args.collective));
  }
  // Larger messages are read as of unknown size, so that sums of them fit in 64 bits.
  constexpr int64_t kMostElements = int64_t{1} << 40;
  const auto element = element_size(trace.strings.view(args.dtype));
  const int64_t elements = std::max<int64_t>({args.in_nelems, args.out_nelems, 0});
  if (element && elements <= kMostElements) {
    c.bytes = elements * *element;
  }
  if (args.unit != kNoUnit) {
    c.unit = args.unit;
  }
  if (args.group_size > 0) {
    c.ranks = args.group_size;
  } else if (args.group != trace::kEmptyString) {
    c.ranks = sizes.of(trace.strings.view(args.group));
  }
  if (args.group != trace::kEmptyString && args.group_description == trace::kEmptyString) {
    c.listed_group = sizes.listed(trace.strings.view(args.group));
  }
  c.action = args.action;
  if (args.issued != 0) {
    c.issued = args.issued;
  }
  return c;
}

std::string_view name_of(Basis basis) {
  constexpr std::string_view kNames[] = {"none", "range", "annotation", "order", "ambiguous"};
  return kNames[static_cast<size_t>(basis)];
}

std::string_view name_of(UnitPart part) {
  constexpr std::string_view kNames[] = {"all_gather_forward", "all_gather_backward",
                                         "reduce_scatter", "all_reduce", "other"};
  return kNames[static_cast<size_t>(part)];
}

Timeline make_timeline(const Trace& trace, const TimelineOptions& options) {
  Timeline timeline;
  static_cast<HostLog&>(timeline) = read_host_log(trace);
  options.check();
  std::vector<trace::Diagnostic> of_devices;
  choose_device(trace, options, timeline.lists, of_devices);
  const Sources sources(trace, timeline.lists, options);
  options.check();
  timeline.units = trace.units;
  for (size_t i = trace.units.size(); i < timeline.fsdp.units.size(); ++i) {
    timeline.units.push_back(timeline.fsdp.units[i].fqn);
  }
  if (timeline.fsdp.source == FsdpSource::kNone && trace.units.empty()) {
    timeline.ddp = read_ddp_log(trace);
  }
  timeline.diagnostics = timeline.fsdp.diagnostics;
  timeline.diagnostics.insert(timeline.diagnostics.end(), of_devices.begin(), of_devices.end());
  timeline.missing_kernels = missing_kernels(sources);
  if (!timeline.missing_kernels.empty()) {
    timeline.lists.device.clear();
  }
  timeline.device = !timeline.lists.device.empty() || !timeline.missing_kernels.empty();
  Instants instants;
  timeline.device ? add_device_events(sources, timeline, instants)
                  : add_host_events(sources, timeline, instants);
  timeline.lists.device = {};  // device_events has them all
  timeline.lists.ranges = {};
  options.check();
  sort_runs(timeline.collectives,
            [](const Collective& a, const Collective& b) { return a.when.start < b.when.start; });
  timeline.compute = instants.compute.take();
  timeline.copy = instants.copy.take();
  timeline.communication = instants.communication.take();
  options.check();
  add_steps(sources, timeline);
  if (!timeline.device) {
    match_host_calls(sources, timeline);
  }
  attribute_program_collectives(sources, timeline);
  attribute_collectives(sources, timeline);
  if (timeline.captured) {
    attribute_captured_collectives(sources, timeline);
  }
  infer_groups(sources, timeline);
  find_purposes(sources, timeline);
  return timeline;
}

}  // namespace shardlens::analysis
