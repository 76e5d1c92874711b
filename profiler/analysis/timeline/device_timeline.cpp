#include <algorithm>
#include <limits>
#include <utility>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/timeline/sources.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::kNoIndex;
using trace::Trace;

// Adds the device events of one trace, one after the other.
class DeviceEvents {
 public:
  DeviceEvents(const Sources& sources, Timeline& timeline, Instants& instants)
      : sources_(sources),
        trace_(sources.trace),
        timeline_(timeline),
        instants_(instants),
        places_(sources.trace.tracks.size()),
        fsdp_ranges_(trace_,
                     sources.lists.ranges,
                     [&](const Event& e) { return sources.names.of(e).is_fsdp_work; }),
        all_gathers_(trace_,
                     sources.lists.ranges,
                     [&](const Event& e) { return sources.names.of(e).is_fsdp_all_gather; }),
        call_list_(find_calls()),
        calls_(trace_, call_list_, [](const Event&) { return true; }),
        calls_with_arguments_(
            trace_,
            call_list_,
            [&](const Event& e) { return collective_row(trace_, e) != kNoIndex; }),
        calls_with_kind_(trace_, call_list_, [&](const Event& e) {
          return sources.names.of(e).call_kind.has_value();
        }) {}

  void add_all() {
    Nanoseconds first = std::numeric_limits<Nanoseconds>::max(),
                last = std::numeric_limits<Nanoseconds>::min();
    int64_t no_launch = 0;
    timeline_.device_events.reserve(sources_.lists.device.size());
    instants_.compute.reserve(sources_.lists.device.size());
    for (const uint32_t i : sources_.lists.device) {
      const Event& event = trace_.events[i];
      first = std::min(first, event.start);
      last = std::max(last, event.end());
      const uint32_t launch = sources_.launches.of(event.correlation);
      no_launch += launch == kNoIndex ? 1 : 0;
      add(i, launch);
    }
    timeline_.span = union_of({{first, last}});
    if (no_launch > 0) {
      add_note(timeline_,
               "device events whose launch is not in the trace; they belong to no step and no unit",
               no_launch);
    }
    sort_events();
  }

 private:
  // By start, and by event where starts are equal. The events of a stream are mostly in order, so
  // streams are merged, the shortest first.
  void sort_events() {
    auto& events = timeline_.device_events;
    const auto before = [](const DeviceEvent& a, const DeviceEvent& b) {
      return a.when.start != b.when.start ? a.when.start < b.when.start : a.event < b.event;
    };
    if (std::is_sorted(events.begin(), events.end(), before)) {
      return;
    }
    // As places in `events`, to move little.
    std::vector<std::vector<uint32_t>> streams(trace_.tracks.size());
    for (uint32_t i = 0; i < events.size(); ++i) {
      streams[timeline_.place(events[i]).track].push_back(i);
    }
    const auto earlier = [&](uint32_t a, uint32_t b) { return before(events[a], events[b]); };
    std::erase_if(streams, [](const std::vector<uint32_t>& stream) { return stream.empty(); });
    for (auto& stream : streams) {
      if (!std::is_sorted(stream.begin(), stream.end(), earlier)) {
        std::sort(stream.begin(), stream.end(), earlier);
      }
    }
    std::sort(streams.begin(), streams.end(),
              [](const auto& a, const auto& b) { return a.size() < b.size(); });
    while (streams.size() > 1) {
      // In pairs, so that many streams of equal length are merged in a logarithmic number of
      // rounds.
      std::vector<std::vector<uint32_t>> merged;
      for (size_t i = 0; i + 1 < streams.size(); i += 2) {
        std::vector<uint32_t>& both =
            merged.emplace_back(streams[i].size() + streams[i + 1].size());
        std::merge(streams[i].begin(), streams[i].end(), streams[i + 1].begin(),
                   streams[i + 1].end(), both.begin(), earlier);
      }
      if (streams.size() % 2 != 0) {
        merged.push_back(std::move(streams.back()));
      }
      streams = std::move(merged);
    }
    // Moves the events to their places along the cycles of the permutation.
    std::vector<uint32_t>& from = streams.front();
    for (uint32_t i = 0; i < from.size(); ++i) {
      if (from[i] == i) {
        continue;
      }
      const DeviceEvent first = events[i];
      uint32_t to = i;
      while (from[to] != i) {
        const uint32_t next = std::exchange(from[to], to);
        events[to] = events[next];
        to = next;
      }
      from[to] = to;
      events[to] = first;
    }
  }

  // Host ranges that may enclose the launch of a collective and describe it.
  [[nodiscard]] std::vector<uint32_t> find_calls() const {
    std::vector<uint32_t> out;
    sources_.lists.for_operators_named(
        trace_,
        [](std::string_view name) {
          return name == "record_param_comms" || is_collective_operator(name);
        },
        [&](uint32_t i) { out.push_back(i); });
    for (const uint32_t i : sources_.lists.ranges) {
      if (sources_.names.of(trace_.events[i]).is_c10d_annotation) {
        out.push_back(i);
      }
    }
    return out;
  }

  void add(uint32_t index, uint32_t launch) {
    const Event& event = trace_.events[index];
    const NameFacts& facts = sources_.names.of(event);
    const Interval when = Sources::when(event);
    Nature nature = Nature::kCompute;
    if (event.category == Category::kKernel) {
      if (trace_.collective(event) != nullptr || facts.communicates || facts.matches) {
        nature = Nature::kCommunication;
        add_collective(index, launch, facts.kind);
      } else if (launch != kNoIndex && is_within_fsdp(launch)) {
        nature = Nature::kCopy;
      }
    } else {
      nature = Nature::kCopy;
      if (facts.is_peer_copy && launch != kNoIndex) {
        const Event& host = trace_.events[launch];
        const bool gathers = is_within_all_gather(host);
        if (gathers || is_within_call(host)) {
          nature = Nature::kCommunication;
          add_collective(index, launch,
                         gathers ? std::optional(CollectiveKind::kAllGather) : std::nullopt);
        }
      }
    }
    (nature == Nature::kCompute         ? instants_.compute
     : nature == Nature::kCommunication ? instants_.communication
                                        : instants_.copy)
        .add(when);
    instants_.busy[event.track].add(when);
    const Event& call = launch == kNoIndex ? event : trace_.events[launch];
    const uint32_t place =
        places_.of({event.track, call.track, owner(event, launch)}, timeline_.places);
    timeline_.device_events.push_back({when, call.start, index, launch, place, nature});
  }

  [[nodiscard]] Owner owner(const Event& event, uint32_t launch) {
    if (launch == kNoIndex) {
      return {};
    }
    // In PyTorch's traces, "External id" is the number of an operator instead.
    if (timeline_.fsdp.source == FsdpSource::kShardlens) {
      const auto pushed = trace::owner_of_external_id(event.external_id);
      if (pushed && (pushed->unit == kNoUnit || pushed->unit < trace_.units.size())) {
        return *pushed;
      }
    }
    const Event& host = trace_.events[launch];
    return timeline_.sections.at(host.track, host.start, near_section_);
  }

  [[nodiscard]] bool is_within_fsdp(uint32_t launch) {
    const Event& host = trace_.events[launch];
    return fsdp_ranges_.innermost(host.track, host.start, near_range_).has_value();
  }

  // [Note: Copy-engine collectives] NCCL and symmetric memory can perform an all-gather with peer
  // copies instead of a kernel. Such a copy is recognized by the host ranges around its launch.
  [[nodiscard]] bool is_within_all_gather(const Event& host) const {
    return all_gathers_.any_around(host.track, host.start);
  }

  [[nodiscard]] bool is_within_call(const Event& host) const {
    return calls_.any_around(host.track, host.start);
  }

  // Kind and arguments are read from the kernel itself, else from the calls around its launch, else
  // from the kernel's name.
  void add_collective(uint32_t index, uint32_t launch, std::optional<CollectiveKind> by_name) {
    const Event& event = trace_.events[index];
    uint32_t args = collective_row(trace_, event);
    std::optional<CollectiveKind> by_call;
    if (launch != kNoIndex && args == kNoIndex) {
      const Event& host = trace_.events[launch];
      if (const auto call = calls_with_arguments_.innermost(host.track, host.start)) {
        args = collective_row(trace_, trace_.events[*call]);
      }
      if (const auto call = calls_with_kind_.innermost(host.track, host.start)) {
        by_call = sources_.names.of(trace_.events[*call]).call_kind;
      }
    }
    Collective c = make_collective(trace_, sources_.sizes, index, args);
    if (!c.kind) {
      // NCCL runs an all-to-all as sends and receives.
      const bool call_knows = by_call && (!by_name || by_name == CollectiveKind::kSendRecv);
      c.kind = call_knows ? by_call : by_name;
    }
    if (launch != kNoIndex) {
      c.issuer = launch;
      c.issued = trace_.events[launch].start;
    }
    timeline_.collectives.push_back(c);
  }

  const Sources& sources_;
  const Trace& trace_;
  Timeline& timeline_;
  Instants& instants_;
  PlaceIndex places_;
  RangeFinder fsdp_ranges_, all_gathers_;
  std::vector<uint32_t> call_list_;
  RangeFinder calls_, calls_with_arguments_, calls_with_kind_;
  size_t near_section_ = 0, near_range_ = 0;
};

}  // namespace

void add_device_events(const Sources& sources, Timeline& timeline, Instants& instants) {
  DeviceEvents(sources, timeline, instants).add_all();
}

}  // namespace shardlens::analysis
