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
        fsdp_ranges_(trace_,
                     [&](const Event& e) {
                       return e.category == Category::kUserAnnotation &&
                              sources.names.of(e).is_fsdp_work;
                     }),
        all_gathers_(trace_,
                     [&](const Event& e) {
                       return e.category == Category::kUserAnnotation &&
                              sources.names.of(e).is_fsdp_all_gather;
                     }),
        calls_(trace_, [&](const Event& e) { return is_call(e); }),
        calls_with_arguments_(
            trace_,
            [&](const Event& e) { return is_call(e) && collective_row(trace_, e) != kNoIndex; }),
        calls_with_kind_(trace_, [&](const Event& e) {
          return is_call(e) && sources.names.of(e).call_kind.has_value();
        }) {}

  void add_all() {
    Nanoseconds first = std::numeric_limits<Nanoseconds>::max(),
                last = std::numeric_limits<Nanoseconds>::min();
    int64_t no_launch = 0;
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      if (!is_device(event)) {
        continue;
      }
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
    auto& events = timeline_.device_events;
    const auto before = [&](const DeviceEvent& a, const DeviceEvent& b) {
      const Event &x = trace_.events[a.event], &y = trace_.events[b.event];
      return x.start != y.start ? x.start < y.start : a.event < b.event;
    };
    if (!std::is_sorted(events.begin(), events.end(), before)) {
      std::sort(events.begin(), events.end(), before);
    }
  }

 private:
  // Host ranges that may enclose the launch of a collective and describe it.
  [[nodiscard]] bool is_call(const Event& event) const {
    if (event.category == Category::kCpuOp) {
      return sources_.names.of(event).is_collective_call;
    }
    return event.category == Category::kUserAnnotation &&
           sources_.names.of(event).is_c10d_annotation;
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
    timeline_.device_events.push_back({index, launch, nature});
  }

  [[nodiscard]] bool is_within_fsdp(uint32_t launch) const {
    const Event& host = trace_.events[launch];
    return fsdp_ranges_.any_around(host.track, host.start);
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
    Collective c = make_collective(trace_, index, args);
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
  RangeFinder fsdp_ranges_, all_gathers_, calls_, calls_with_arguments_, calls_with_kind_;
};

}  // namespace

void add_device_events(const Sources& sources, Timeline& timeline, Instants& instants) {
  DeviceEvents(sources, timeline, instants).add_all();
}

}  // namespace shardlens::analysis
