#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "profiler/analysis/events/names.h"
#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/events/prefetch.h"
#include "profiler/analysis/timeline/captured_work.h"
#include "profiler/analysis/timeline/sharding_parts.h"
#include "profiler/analysis/timeline/sources.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::kNoIndex;
using trace::Trace;

using Launch = LaunchIndex::Call;

// Adds the device events of one trace, one after the other.
class DeviceEvents {
 public:
  DeviceEvents(const Sources& sources, Timeline& timeline, Instants& instants)
      : sources_(sources),
        trace_(sources.trace),
        timeline_(timeline),
        instants_(instants),
        places_(sources.trace.tracks.size()),
        launched_(sources.lists.calls.size()),
        fsdp_ranges_(trace_, fsdp_work("")) {}

  void add_all() {
    Nanoseconds first = std::numeric_limits<Nanoseconds>::max(),
                last = std::numeric_limits<Nanoseconds>::min();
    int64_t no_launch = 0;
    timeline_.device_events.reserve(sources_.lists.device.size());
    instants_.compute.reserve(sources_.lists.device.size());
    timeline_.collectives.reserve(
        std::min(trace_.collectives.size(), sources_.lists.device.size()));
    const CapturedWork captured(sources_);
    timeline_.captured = captured.any();
    std::vector<SeenEvent> waiting;
    const std::vector<EventLists::DeviceStart>& starts = sources_.lists.device;
    for (size_t i = 0; i < starts.size(); ++i) {
      if (i + kAhead < starts.size()) {
        prefetch(trace_.events[starts[i + kAhead].event]);
      }
      const EventLists::DeviceStart& each = starts[i];
      const Event& event = trace_.events[each.event];
      first = std::min(first, event.start);
      last = std::max(last, event.end());
      const Launch* launch = sources_.launches.find(event.correlation);
      no_launch += launch == nullptr ? 1 : 0;
      const SeenEvent seen = see(each.event, launch);
      if (captured.any()) {
        waiting.push_back(seen);
      } else {
        add(seen);
      }
    }
    if (captured.any()) {
      captured.attribute(waiting, timeline_);
      for (const SeenEvent& seen : waiting) {
        add(seen);
      }
    }
    if (!sources_.lists.device.empty()) {
      timeline_.span = union_of({{first, last}});
    }
    if (no_launch > 0) {
      add_note(timeline_,
               "device events whose launch is not in the trace; they belong to no step and no unit",
               no_launch);
    }
  }

 private:
  // FSDP's ranges that contain only its own work; `what`: all of them, or those of this name.
  [[nodiscard]] std::vector<EventLists::Range> fsdp_work(std::string_view what) const {
    std::vector<EventLists::Range> out;
    sources_.lists.for_ranges_named(
        trace_,
        [&](std::string_view name) {
          const auto range = parse_fsdp_range(name);
          return range && range->is_own_work() && (what.empty() || range->what == what);
        },
        [&](const EventLists::Range& range) { out.push_back(range); });
    return out;
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
    sources_.lists.for_ranges_named(
        trace_, is_c10d_annotation,
        [&](const EventLists::Range& range) { out.push_back(range.event); });
    return out;
  }

  [[nodiscard]] SeenEvent see(uint32_t index, const Launch* launch) {
    const Event& event = trace_.events[index];
    const NameFacts& facts = sources_.names.of(event);
    SeenEvent seen;
    seen.event = index;
    seen.launch = launch;
    if (event.category == Category::kKernel) {
      if (trace_.collective(event) != nullptr || facts.communicates || facts.matches) {
        seen.nature = Nature::kCommunication;
        seen.kind = facts.kind;
      } else if (launch != nullptr && is_within_fsdp(*launch)) {
        seen.nature = Nature::kCopy;
      }
    } else {
      seen.nature = Nature::kCopy;
      if (facts.is_peer_copy && launch != nullptr) {
        const bool gathers = is_within_all_gather(*launch);
        if (gathers || is_within_call(*launch)) {
          seen.nature = Nature::kCommunication;
          seen.kind = gathers ? std::optional(CollectiveKind::kAllGather) : std::nullopt;
        }
      }
    }
    seen.owner = owner(event, launch);
    return seen;
  }

  void add(const SeenEvent& seen) {
    const Event& event = trace_.events[seen.event];
    const Interval when = Sources::when(event);
    if (seen.nature == Nature::kCommunication) {
      add_collective(seen);
    }
    (seen.nature == Nature::kCompute         ? instants_.compute
     : seen.nature == Nature::kCommunication ? instants_.communication
                                             : instants_.copy)
        .add(when);
    const Launch* launch = seen.launch;
    const uint32_t thread = launch == nullptr ? event.track : launch->track;
    const uint32_t place =
        places_.of({event.track, thread, seen.owner, seen.basis}, timeline_.places);
    timeline_.device_events.push_back({when, launch == nullptr ? event.start : launch->start,
                                       seen.event, launch == nullptr ? kNoIndex : launch->event,
                                       place, seen.nature, repeats_launch(launch)});
  }

  [[nodiscard]] bool repeats_launch(const Launch* launch) {
    if (launch == nullptr) {
      return false;
    }
    const auto place = static_cast<size_t>(launch - sources_.lists.calls.data());
    const bool before = launched_[place];
    launched_[place] = true;
    return before;
  }

  [[nodiscard]] Owner owner(const Event& event, const Launch* launch) {
    if (launch == nullptr) {
      return {};
    }
    // In PyTorch's traces, "External id" is the number of an operator instead.
    if (timeline_.fsdp.source == FsdpSource::kShardlens) {
      const auto pushed = trace::owner_of_external_id(event.external_id);
      if (pushed && (pushed->unit == kNoUnit || pushed->unit < trace_.units.size())) {
        return *pushed;
      }
    }
    return timeline_.sections.at(launch->track, launch->start, near_section_);
  }

  [[nodiscard]] bool is_within_fsdp(const Launch& launch) {
    return fsdp_ranges_.innermost(launch.track, launch.start, near_range_).has_value();
  }

  // [Note: Copy-engine collectives] NCCL and symmetric memory can perform an all-gather with peer
  // copies instead of a kernel. Such a copy is recognized by the host ranges around its launch.
  [[nodiscard]] bool is_within_all_gather(const Launch& launch) {
    if (!all_gathers_) {
      all_gathers_.emplace(trace_, fsdp_work("all_gather"));
    }
    return all_gathers_->any_around(launch.track, launch.start);
  }

  [[nodiscard]] bool is_within_call(const Launch& launch) {
    if (!calls_) {
      calls_.emplace(trace_, find_calls(), [](const Event&) { return true; });
    }
    return calls_->any_around(launch.track, launch.start);
  }

  // The arguments and the kind that the calls around a launch have.
  [[nodiscard]] std::pair<uint32_t, std::optional<CollectiveKind>> described(const Launch& launch) {
    if (!calls_with_arguments_) {
      const std::vector<uint32_t> calls = find_calls();
      calls_with_arguments_.emplace(
          trace_, calls, [&](const Event& e) { return collective_row(trace_, e) != kNoIndex; });
      calls_with_kind_.emplace(trace_, calls, [&](const Event& e) {
        return sources_.names.of(e).call_kind.has_value();
      });
    }
    const auto arguments = calls_with_arguments_->innermost(launch.track, launch.start);
    const auto kind = calls_with_kind_->innermost(launch.track, launch.start);
    return {arguments ? collective_row(trace_, trace_.events[*arguments]) : kNoIndex,
            kind ? sources_.names.of(trace_.events[*kind]).call_kind : std::nullopt};
  }

  // Kind and arguments are read from the kernel itself, else from the calls around its launch, else
  // from the kernel's name.
  void add_collective(const SeenEvent& seen) {
    const uint32_t index = seen.event;
    const Launch* launch = seen.launch;
    const std::optional<CollectiveKind> by_name = seen.kind;
    uint32_t args = collective_row(trace_, trace_.events[index]);
    std::optional<CollectiveKind> by_call;
    if (launch != nullptr && args == kNoIndex) {
      std::tie(args, by_call) = described(*launch);
    }
    Collective c = make_collective(trace_, sources_.sizes, index, args);
    if (!c.kind) {
      // NCCL runs an all-to-all as sends and receives.
      const bool call_knows = by_call && (!by_name || by_name == CollectiveKind::kSendRecv);
      c.kind = call_knows ? by_call : by_name;
    }
    if (launch != nullptr) {
      c.issuer = launch->event;
      c.issued = launch->start;
    }
    c.basis = seen.basis;
    if (seen.basis != Basis::kNone) {
      c.section = seen.owner.section;
      if (seen.owner.unit != kNoUnit) {
        c.unit = seen.owner.unit;
      }
    }
    if (seen.planned != nullptr) {
      describe_planned(*seen.planned, c);
    }
    timeline_.collectives.push_back(c);
  }

  void describe_planned(const PlannedCall& call, Collective& c) const {
    set_purpose(c, sharding_purpose(call.kind), call.backward);
    c.issued_by = call.cause;
    c.bytes = call.bytes;
    c.ranks = call.group.size;
    const auto& groups = trace_.metadata.groups;
    const std::vector<int64_t> ranks = call.group.members(trace_.metadata.rank.value_or(0));
    const auto same = [&](const trace::ProcessGroup& each) { return each.ranks == ranks; };
    const auto only = std::ranges::find_if(groups, same);
    if (only != groups.end() && std::none_of(std::next(only), groups.end(), same)) {
      c.listed_group = static_cast<uint32_t>(only - groups.begin());
    }
  }

  const Sources& sources_;
  const Trace& trace_;
  Timeline& timeline_;
  Instants& instants_;
  PlaceIndex places_;
  std::vector<bool> launched_;  // by call: it has launched an event
  RangeFinder fsdp_ranges_;
  // Made when first needed: few traces need them.
  std::optional<RangeFinder> all_gathers_, calls_, calls_with_arguments_, calls_with_kind_;
  size_t near_section_ = 0, near_range_ = 0;
};

}  // namespace

void add_device_events(const Sources& sources, Timeline& timeline, Instants& instants) {
  DeviceEvents(sources, timeline, instants).add_all();
}

}  // namespace shardlens::analysis
