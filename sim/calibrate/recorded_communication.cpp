#include "sim/calibrate/recorded_communication.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/workload/communications.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/fsdp_log/fsdp_log.h"
#include "profiler/analysis/recover/recorded_operators.h"
#include "profiler/trace/parallel_axes.h"

namespace shardlens::sim {
namespace {

using analysis::Interval;
using analysis::Section;
using plan::Phase;
using plan::WorkloadItem;
using trace::Event;
using trace::ParallelAxis;
using trace::ProcessGroup;

bool is_wait(std::string_view name) {
  return name.find("wait_tensor") != std::string_view::npos;
}

// The host's calls of collectives, on all threads.
class Calls {
 public:
  explicit Calls(const trace::Trace& trace) : tracks_(trace.tracks.size()) {
    for (uint32_t i = 0; i < trace.events.size(); ++i) {
      const Event& event = trace.events[i];
      if (event.phase != trace::EventPhase::kComplete) {
        continue;
      }
      Track& track = tracks_.at(event.track);
      track.instants.push_back(event.start);
      track.instants.push_back(event.end());
      if (event.category == trace::Category::kCpuOp &&
          analysis::is_c10d_operator(trace.name(event))) {
        track.calls.push_back({{event.start, event.end()}, trace.name(event), {}});
      }
    }
    for (Track& track : tracks_) {
      std::sort(track.instants.begin(), track.instants.end());
      keep_outermost(track.calls);
      match_waits(track.calls);
    }
  }

  struct Call {
    Interval when;
    std::string_view name;
    std::optional<Interval> wait;  // the call of wait_tensor
  };
  // The outermost call around an instant.
  [[nodiscard]] const Call* around(uint32_t track, Nanoseconds instant) const {
    const std::vector<Call>& calls = tracks_.at(track).calls;
    const auto after =
        std::upper_bound(calls.begin(), calls.end(), instant,
                         [](Nanoseconds t, const Call& call) { return t < call.when.start; });
    const bool found = after != calls.begin() && instant < std::prev(after)->when.end;
    return found ? &*std::prev(after) : nullptr;
  }

  // Whether nothing is recorded on the thread between the two instants.
  [[nodiscard]] bool idle(uint32_t track, Nanoseconds from, Nanoseconds until) const {
    const std::vector<Nanoseconds>& instants = tracks_.at(track).instants;
    const auto next = std::upper_bound(instants.begin(), instants.end(), from);
    return next != instants.end() && *next >= until;
  }

 private:
  struct Track {
    std::vector<Call> calls;
    std::vector<Nanoseconds> instants;  // begins and ends of all events
  };

  static void keep_outermost(std::vector<Call>& calls) {
    std::stable_sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) {
      return a.when.start != b.when.start ? a.when.start < b.when.start : a.when.end > b.when.end;
    });
    std::optional<Nanoseconds> until;
    std::erase_if(calls, [&until](const Call& call) {
      const bool inside = until && call.when.start < *until;
      until = inside ? until : std::optional(call.when.end);
      return inside;
    });
  }

  // A functional collective returns a tensor that wait_tensor waits for, in the order of the calls.
  static void match_waits(std::vector<Call>& calls) {
    std::deque<Call*> open;
    for (Call& call : calls) {
      if (is_wait(call.name)) {
        if (!open.empty()) {
          open.front()->wait = call.when;
          open.pop_front();
        }
      } else if (call.name.starts_with("_c10d_functional::") &&
                 call.name.find("_wrap_tensor") == std::string_view::npos) {
        open.push_back(&call);
      }
    }
  }

  std::vector<Track> tracks_;
};

// The process group of a collective: by the name in its arguments, or as listed.
const ProcessGroup* process_group(const trace::Trace& trace, const analysis::Collective& of) {
  const std::vector<ProcessGroup>& groups = trace.metadata.groups;
  if (of.args != trace::kNoIndex) {
    const std::string_view name = trace.strings.view(trace.collectives[of.args].group);
    const auto found = std::ranges::find(groups, name, &ProcessGroup::name);
    if (found != groups.end() && !name.empty()) {
      return &*found;
    }
  }
  return of.listed_group < groups.size() ? &groups[of.listed_group] : nullptr;
}

mesh::Group group_of(const ProcessGroup* group,
                     const std::optional<ParallelAxis>& axis,
                     int64_t ranks) {
  mesh::Group out;
  out.size = ranks;
  const std::string description = group == nullptr ? "" : group->description;
  const bool named = !description.empty() && description != "undefined";
  out.name = axis && *axis != ParallelAxis::kData ? std::string(trace::name_of(*axis))
             : named                              ? description
                                                  : fmt::format("{} ranks", ranks);
  if (group != nullptr && group->ranks.size() > 1) {
    out.stride = std::max<int64_t>(1, group->ranks[1] - group->ranks[0]);
  }
  return out;
}

// The sizes of an all-to-all on this rank, which may be 0. Over Gloo the call has them, on a device
// the kernel.
analysis::CallSize size_of_exchange(const trace::Trace& trace, const analysis::Collective& of) {
  return analysis::call_size(trace,
                             trace.events[of.args == trace::kNoIndex ? of.issuer : of.event]);
}

// `bytes`: of the larger message, if the trace does not have both.
ExchangedBytes exchanged_bytes(const analysis::CallSize& size, Bytes bytes) {
  const Bytes element = size.dtype ? size_of(*size.dtype) : size.element.value_or(0);
  return size.in >= 0 && size.out >= 0 && element > 0
             ? ExchangedBytes{size.in * element, size.out * element}
             : ExchangedBytes{bytes, bytes};
}

// When an item of a recorded pass takes place.
Nanoseconds time_of(const analysis::RecoveredWorkload& pass, size_t at) {
  const WorkloadItem& item = pass.workload.order[at];
  const bool after = item.kind == WorkloadItem::Kind::kHook &&
                     pass.workload.hooks[item.index].hook == Hook::kPostForward;
  return after ? pass.times[at].end : pass.times[at].start;
}

// The operator of forward that the operators of backward around position `at` differentiate, if
// they are of the unit.
std::optional<WorkloadItem> forward_of(const plan::Workload& workload, size_t at, UnitId unit) {
  const auto of = [&](const WorkloadItem& item) -> std::optional<WorkloadItem> {
    if (item.kind != WorkloadItem::Kind::kOperator) {
      return std::nullopt;
    }
    const plan::Operator& op = workload.operators[item.index];
    return op.phase == Phase::kBackward && op.unit == unit && op.forward >= 0
               ? std::optional(WorkloadItem{item.kind, static_cast<uint32_t>(op.forward)})
               : std::nullopt;
  };
  const auto neighbour = [&](auto begin, auto end) -> std::optional<WorkloadItem> {
    const auto found = std::find_if(
        begin, end, [](const WorkloadItem& i) { return i.kind == WorkloadItem::Kind::kOperator; });
    return found == end ? std::nullopt : of(*found);
  };
  const auto here = workload.order.begin() + static_cast<std::ptrdiff_t>(at);
  const auto before = neighbour(std::make_reverse_iterator(here), workload.order.rend());
  return before ? before : neighbour(here, workload.order.end());
}

// What a program communicates for along an axis of the plan's mesh; kOther: along no such axis.
Purpose purpose_along(std::string_view axis) {
  return axis == mesh::kTensor    ? Purpose::kActivations
         : axis == mesh::kContext ? Purpose::kContext
         : axis == mesh::kExpert  ? Purpose::kTokens
                                  : Purpose::kOther;
}

// The plan's group: of these ranks, or of this name. An axis of all ranks has the default group,
// which FSDP may have too: a program's own communication is along the axis that divides the model.
mesh::GroupId group_in(const RecordedCommunication& each, plan::ResolvedPlan& plan) {
  std::optional<size_t> same;
  for (size_t id = 0; each.of_data && id < plan.groups.size(); ++id) {
    const mesh::Group& group = plan.groups[id];
    const bool divides = purpose_along(group.name) != Purpose::kOther;
    // A trace does not always name the default group.
    const bool here = each.ranks.empty() ? divides && group.size == each.group.size &&
                                               group.size == plan.world_size
                                         : group.members(each.ranks.front()) == each.ranks;
    if (here && (!same || divides)) {
      same = id;
    }
  }
  if (same) {
    return static_cast<mesh::GroupId>(*same);
  }
  mesh::Group group = each.group;
  const auto found = std::ranges::find(plan.groups, group.name, &mesh::Group::name);
  if (found != plan.groups.end() && found->size != group.size) {
    group.name += fmt::format(" of {}", group.size);
  } else if (found != plan.groups.end()) {
    group.stride = found->stride;
  }
  return plan::add_group(group, plan);
}

}  // namespace

std::vector<RecordedCommunication> recorded_communications(const trace::Trace& trace,
                                                           const analysis::Timeline& timeline,
                                                           const UnitNames& units) {
  std::vector<RecordedCommunication> out;
  std::optional<Calls> calls;  // most traces have no such collective
  for (const analysis::Collective& each : timeline.collectives) {
    const bool in_pass = each.section == Section::kForward || each.section == Section::kLoss ||
                         each.section == Section::kBackward;
    if (!each.kind || !in_pass || each.part != analysis::UnitPart::kOther || each.ranks < 2 ||
        each.issuer == trace::kNoIndex) {
      continue;
    }
    std::optional<analysis::CallSize> exchanged;
    if (*each.kind == CollectiveKind::kAllToAll) {
      exchanged = size_of_exchange(trace, each);
    }
    if (each.bytes <= 0 && !(exchanged && exchanged->in == 0 && exchanged->out == 0)) {
      continue;
    }
    if (!calls) {
      calls.emplace(trace);
    }
    const Event& issuer = trace.events[each.issuer];
    const Calls::Call* call = calls->around(issuer.track, issuer.start);
    const ProcessGroup* group = process_group(trace, each);
    const auto axis = group == nullptr ? std::nullopt : trace::axis_of(group->description);
    RecordedCommunication& made = out.emplace_back();
    made.what.kind = *each.kind;
    made.what.purpose = each.purpose;
    made.what.phase = analysis::phase_of(each.section);
    made.what.bytes = each.bytes;
    if (exchanged) {
      made.exchanged = exchanged_bytes(*exchanged, each.bytes);
    }
    if (each.unit) {
      made.what.module = timeline.units[*each.unit];
      const auto unit = units.find(made.what.module);
      made.what.unit = unit == units.end() ? 0 : unit->second;
    }
    made.group = group_of(group, axis, each.ranks);
    made.ranks = group == nullptr ? std::vector<int64_t>() : group->ranks;
    made.of_data = axis.value_or(ParallelAxis::kData) == ParallelAxis::kData;
    made.when = each.when;
    made.issued = issuer.start;
    made.call = call != nullptr ? call->when : Interval{issuer.start, issuer.end()};
    if (each.wait != trace::kNoIndex) {
      const Event& wait = trace.events[each.wait];
      made.waited = {wait.start, wait.end()};
      made.waits = true;
    } else if (call != nullptr && call->wait) {
      made.waited = *call->wait;
      made.waits = true;
    } else if (!timeline.device && calls->idle(issuer.track, made.call.end, each.when.end)) {
      made.waited = {made.call.end, std::max(made.call.end, each.when.end)};
      made.waits = true;
    }
  }
  std::ranges::stable_sort(
      out, [](const auto& a, const auto& b) { return a.call.start < b.call.start; });
  return out;
}

std::vector<RecordedCommunication> add_communications(
    const std::vector<RecordedCommunication>& recorded,
    analysis::RecoveredWorkload& pass,
    Observation& out) {
  std::vector<RecordedCommunication> added;
  std::vector<WorkloadItem> order;
  std::vector<Interval> times;
  std::vector<plan::Communication> communications;
  size_t at = 0;  // of the pass
  const auto copy_until = [&](Nanoseconds time) {
    for (; at < pass.times.size() && time_of(pass, at) <= time; ++at) {
      order.push_back(pass.workload.order[at]);
      times.push_back(pass.times[at]);
    }
  };
  for (const RecordedCommunication& each : recorded) {
    if (each.call.start < pass.window.start || each.call.start >= pass.window.end) {
      continue;
    }
    copy_until(each.issued);
    plan::Communication made = each.what;
    made.group = group_in(each, out.plan);
    if (made.purpose == Purpose::kOther) {
      made.purpose = purpose_along(out.plan.groups[made.group].name);
    }
    if (made.phase == Phase::kBackward) {
      made.forward = forward_of(out.workload, at, made.unit);
    }
    // The host, or the stream, goes on until it waits; without a wait that is known, on a CPU until
    // the collective has ended, and on a device not at all.
    const bool device = out.host == HostMode::kAhead;
    const Nanoseconds until = each.waits ? each.waited.start : device ? each.issued : each.when.end;
    size_t waiting = at;
    while (waiting < pass.times.size() && time_of(pass, waiting) < until) {
      ++waiting;
    }
    if (waiting != at && waiting < pass.times.size()) {
      made.waited_by = pass.workload.order[waiting];
    }
    order.push_back(
        {WorkloadItem::Kind::kCommunication, static_cast<uint32_t>(communications.size())});
    times.push_back(each.call);
    communications.push_back(std::move(made));
    added.push_back(each);
  }
  copy_until(pass.window.end);
  for (; at < pass.times.size(); ++at) {
    order.push_back(pass.workload.order[at]);
    times.push_back(pass.times[at]);
  }
  pass.times = std::move(times);
  pass.workload.order = out.workload.order = std::move(order);
  pass.workload.communications = out.workload.communications = std::move(communications);
  return added;
}

}  // namespace shardlens::sim
