#include "profiler/analysis/timeline.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/base/dtype.h"
#include "profiler/analysis/action_index.h"
#include "profiler/analysis/names.h"
#include "profiler/analysis/nesting.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::Phase;
using trace::Severity;
using trace::Trace;

bool is_device(const Event& event) {
  return event.phase == Phase::kComplete &&
         (event.category == Category::kKernel || event.category == Category::kGpuMemcpy ||
          event.category == Category::kGpuMemset);
}

bool is_launch(const Event& event) {
  return event.category == Category::kCudaRuntime || event.category == Category::kCudaDriver;
}

// A host event that stands for a collective on its communicator.
bool is_host_collective(const Trace& trace, const Event& event) {
  return event.phase == Phase::kComplete &&
         (event.category == Category::kCommunication ||
          (event.category == Category::kUserAnnotation && is_c10d_annotation(trace.name(event))));
}

// Where an event was issued on the host: the track and time of its launch.
struct Origin {
  uint32_t track = 0;
  Nanoseconds time = 0;
};

class Builder {
 public:
  Builder(const Trace& trace, const TimelineOptions& options)
      : trace_(trace), options_(options), actions_(trace), ranges_(trace, [&](const Event& e) {
          return e.category == Category::kUserAnnotation &&
                 parse_fsdp_range(trace.name(e)).has_value();
        }) {}

  Timeline build() {
    out_.units = trace_.units;
    for (uint32_t i = 0; i < trace_.units.size(); ++i) {
      units_.emplace(trace_.units[i], i);
    }
    out_.device = std::any_of(trace_.events.begin(), trace_.events.end(), is_device);
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      if (is_launch(trace_.events[i]) && trace_.events[i].correlation != 0) {
        launches_.emplace(trace_.events[i].correlation, i);
      }
    }
    out_.device ? device_events() : host_events();
    out_.compute = union_of(std::move(compute_));
    out_.copy = union_of(std::move(copy_));
    std::stable_sort(
        out_.collectives.begin(), out_.collectives.end(),
        [](const Collective& a, const Collective& b) { return a.when.start < b.when.start; });
    std::vector<Interval> communication;
    for (const Collective& c : out_.collectives) {
      communication.push_back(c.when);
    }
    out_.communication = union_of(std::move(communication));
    for (auto& [track, intervals] : busy_) {
      out_.busy[track] = union_of(std::move(intervals));
    }
    steps();
    if (!out_.device) {
      match_host_calls();
    }
    for (Collective& c : out_.collectives) {
      describe(c);
    }
    return std::move(out_);
  }

 private:
  // --- device traces ---------------------------------------------------------------------------

  [[nodiscard]] std::optional<Origin> origin(const Event& event) const {
    const auto launch = launches_.find(event.correlation);
    if (event.correlation == 0 || launch == launches_.end()) {
      return std::nullopt;
    }
    const Event& host = trace_.events[launch->second];
    return Origin{host.track, host.start};
  }

  void device_events() {
    int64_t no_launch = 0;
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      if (!is_device(event)) {
        continue;
      }
      const Interval when{event.start, event.end()};
      span_.push_back(when);
      busy_[event.track].push_back(when);
      no_launch += origin(event) ? 0 : 1;
      if (event.category == Category::kKernel && communicates(event)) {
        out_.collectives.push_back(collective(i));
      } else if (event.category != Category::kKernel || is_fsdp_copy(event)) {
        copy_.push_back(when);
      } else {
        compute_.push_back(when);
      }
    }
    Interval hull{span_.front()};
    for (const Interval& each : span_) {
      hull = {std::min(hull.start, each.start), std::max(hull.end, each.end)};
    }
    out_.span = union_of({hull});
    if (no_launch > 0) {
      note("device events whose launch is not in the trace; no step and no unit is theirs",
           no_launch);
    }
  }

  [[nodiscard]] bool communicates(const Event& event) const {
    const std::string_view name = trace_.name(event);
    return trace_.collective(event) != nullptr || is_communication_kernel(name) || matches(name);
  }

  [[nodiscard]] bool matches(std::string_view name) const {
    return options_.communication &&
           std::regex_search(name.begin(), name.end(), *options_.communication);
  }

  [[nodiscard]] bool is_fsdp_copy(const Event& event) const {
    const auto from = origin(event);
    return from && !ranges_.around(from->track, from->time).empty();
  }

  // --- host traces -----------------------------------------------------------------------------

  void host_events() {
    std::vector<Interval> operators;
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      const Interval when{event.start, event.end()};
      if (is_host_collective(trace_, event) ||
          (event.phase == Phase::kComplete && event.category == Category::kCpuOp &&
           matches(trace_.name(event)))) {
        out_.collectives.push_back(collective(i));
        busy_[event.track].push_back(when);
      } else if (event.phase == Phase::kComplete && event.category == Category::kCpuOp) {
        operators.push_back(when);
      }
    }
    leaf_operators();
    if (!operators.empty()) {
      Interval hull = operators.front();
      for (const Interval& each : operators) {
        hull = {std::min(hull.start, each.start), std::max(hull.end, each.end)};
      }
      span_ = {hull};
    } else {
      for (const Collective& c : out_.collectives) {
        span_.push_back(c.when);
      }
    }
    out_.span = union_of(span_);
  }

  // See [Note: Leaf operators] in names.h.
  void leaf_operators() {
    std::unordered_map<uint32_t, bool> has_operators;   // below an operator
    std::vector<std::pair<uint32_t, bool>> candidates;  // event, whether FSDP copies in it
    const auto wanted = [&](const Event& e) {
      return e.category == Category::kCpuOp || e.category == Category::kUserAnnotation ||
             e.category == Category::kCommunication;
    };
    walk_nested(trace_, wanted, [&](uint32_t index, std::span<const uint32_t> open) {
      const Event& event = trace_.events[index];
      const std::string_view name = trace_.name(event);
      if (event.category != Category::kCpuOp || !is_operator(name) || is_c10d_operator(name) ||
          matches(name)) {
        return;
      }
      bool copies = name.starts_with("fsdp::");
      for (size_t i = open.size(); i-- > 0;) {
        const Event& around = trace_.events[open[i]];
        if (is_host_collective(trace_, around) || matches(trace_.name(around))) {
          return;  // part of the collective, on the thread of its communicator
        }
        if (around.category == Category::kUserAnnotation) {
          copies = copies || parse_fsdp_range(trace_.name(around)).has_value();
        } else if (around.category == Category::kCpuOp) {
          copies = copies || trace_.name(around).starts_with("fsdp::");
          if (!is_helper_operator(name)) {
            has_operators[open[i]] = true;
          }
        }
      }
      candidates.emplace_back(index, copies);
    });
    for (const auto& [index, copies] : candidates) {
      if (!has_operators.contains(index)) {
        const Event& event = trace_.events[index];
        const Interval when{event.start, event.end()};
        busy_[event.track].push_back(when);
        (copies ? copy_ : compute_).push_back(when);
      }
    }
  }

  // Gloo's threads do not say which call they serve. Calls and collectives come in the same order,
  // so the n-th belongs to the n-th, if there are as many of both.
  void match_host_calls() {
    std::vector<uint32_t> calls;
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      if (event.phase == Phase::kComplete && event.category == Category::kCpuOp &&
          trace_.name(event).starts_with("c10d::") && parse_collective(trace_.name(event))) {
        calls.push_back(i);
      }
    }
    std::vector<Collective*> unnamed;
    for (Collective& c : out_.collectives) {
      if (trace_.collective(trace_.events[c.event]) == nullptr) {
        unnamed.push_back(&c);
      }
    }
    if (unnamed.empty()) {
      return;
    }
    if (calls.size() != unnamed.size()) {
      note(fmt::format("{} collectives for {} calls of c10d in the trace: no unit is theirs",
                       unnamed.size(), calls.size()),
           1);
      return;
    }
    std::stable_sort(calls.begin(), calls.end(), [&](uint32_t a, uint32_t b) {
      return trace_.events[a].start < trace_.events[b].start;
    });
    for (size_t i = 0; i < calls.size(); ++i) {
      const Event& call = trace_.events[calls[i]];
      unnamed[i]->kind =
          parse_collective(trace_.name(call));  // Gloo's own name may be of what it is made of
      if (call.start <= unnamed[i]->when.start) {
        unnamed[i]->issued = call.start;
      }
      host_calls_[unnamed[i]->event] = {call.track, call.start};
    }
  }

  // --- steps -----------------------------------------------------------------------------------

  void steps() {
    std::vector<Step> marks;
    for (const Event& event : trace_.events) {
      if (event.phase == Phase::kComplete && event.category == Category::kUserAnnotation) {
        if (const auto number = parse_profiler_step(trace_.name(event))) {
          marks.push_back({*number, {event.start, event.end()}});
        }
      }
    }
    std::stable_sort(marks.begin(), marks.end(),
                     [](const Step& a, const Step& b) { return a.window.start < b.window.start; });
    if (marks.empty()) {
      note(out_.device ? "the trace marks no steps (ProfilerStep#k)"
                       : "the trace marks no steps (ProfilerStep#k): figures cover all operators",
           1);
      return;
    }
    if (!out_.device) {
      out_.steps = marks;
      std::vector<Interval> windows;
      for (const Step& step : marks) {
        windows.push_back(step.window);
      }
      out_.span = union_of(std::move(windows));
      return;
    }
    device_steps(marks);
  }

  // A step's device time begins with the first event that it launched.
  void device_steps(const std::vector<Step>& marks) {
    std::vector<std::optional<Interval>> launched(marks.size());
    for (const Event& event : trace_.events) {
      const auto from = is_device(event) ? origin(event) : std::nullopt;
      if (!from) {
        continue;
      }
      const auto after =
          std::upper_bound(marks.begin(), marks.end(), from->time,
                           [](Nanoseconds t, const Step& s) { return t < s.window.start; });
      if (after == marks.begin() || from->time >= std::prev(after)->window.end) {
        continue;
      }
      auto& hull = launched[static_cast<size_t>(after - marks.begin()) - 1];
      hull = hull ? Interval{std::min(hull->start, event.start), std::max(hull->end, event.end())}
                  : Interval{event.start, event.end()};
    }
    std::vector<Step> found;
    for (size_t i = 0; i < marks.size(); ++i) {
      if (launched[i]) {
        found.push_back({marks[i].number, *launched[i]});
      } else {
        note("steps that launched no device event have no figures", 1);
      }
    }
    for (size_t i = 0; i + 1 < found.size(); ++i) {
      // Streams may still run the step's last events when the next one's first begins: that time is
      // the next step's.
      found[i].window.end = std::max(found[i].window.start, found[i + 1].window.start);
    }
    out_.steps = std::move(found);
  }

  // --- collectives -----------------------------------------------------------------------------

  Collective collective(uint32_t index) const {
    const Event& event = trace_.events[index];
    Collective c;
    c.event = index;
    c.kind = trace::collective_kind(trace_, event);
    c.when = {event.start, event.end()};
    c.track = event.track;
    if (const trace::CollectiveArgs* args = trace_.collective(event)) {
      const auto dtype = parse_dtype(trace_.strings.view(args->dtype));
      Bytes bytes = 0;
      if (dtype &&
          !__builtin_mul_overflow(std::max<int64_t>({args->in_nelems, args->out_nelems, 0}),
                                  size_of(*dtype), &bytes)) {
        c.bytes = bytes;
      }
      if (args->unit != kNoUnit) {
        c.unit = args->unit;
      }
      c.action = args->action;
      if (args->issued != 0) {
        c.issued = args->issued;
      }
    }
    if (const auto from = origin(event)) {
      c.issued = from->time;
    }
    return c;
  }

  // Unit, part of the step and why it was issued, once kinds are known.
  void describe(Collective& c) {
    if (const ActionIndex::Entry* action = c.action == 0 ? nullptr : actions_.action(c.action)) {
      c.issued_by = action->args->action.cause;
      c.needed_at = actions_.needed_at(c.action);
      const ActionIndex::Limiter limiter = actions_.limiter(c.action);
      const bool on_device = out_.device && limiter.stream_waits && c.issued;
      c.limiter_wait = limiter.host_waited + (on_device ? c.when.start - *c.issued : 0);
      const HookEvent* hook = actions_.hook_of(*action);
      c.part = part_of(c.kind, hook != nullptr && in_backward(*hook));
      return;
    }
    const Event& event = trace_.events[c.event];
    std::optional<Origin> from = origin(event);
    if (const auto call = host_calls_.find(c.event); call != host_calls_.end()) {
      from = call->second;
    }
    bool backward = false, prefetch = false;
    for (const uint32_t range :
         from ? ranges_.around(from->track, from->time) : std::vector<uint32_t>()) {
      const auto fsdp = parse_fsdp_range(trace_.name(trace_.events[range]));
      if (!c.unit && fsdp->fqn && !fsdp->what.ends_with("_prefetch")) {
        c.unit = unit_id(*fsdp->fqn);
      }
      backward = backward || fsdp->what == "pre_backward" || fsdp->what == "backward_prefetch";
      prefetch = prefetch || fsdp->what.ends_with("_prefetch");
    }
    c.part = c.unit ? part_of(c.kind, backward) : UnitPart::kOther;
    if (prefetch) {
      c.issued_by =
          backward ? schedule::Cause::kBackwardPrefetch : schedule::Cause::kForwardPrefetch;
    }
  }

  static bool in_backward(const HookEvent& hook) {
    return hook.hook == Hook::kPreBackward || hook.hook == Hook::kGradsReady ||
           hook.hook == Hook::kBackwardEnd || hook.recompute;
  }

  static UnitPart part_of(const std::optional<CollectiveKind>& kind, bool backward) {
    if (kind == CollectiveKind::kAllGather) {
      return backward ? UnitPart::kAllGatherBackward : UnitPart::kAllGatherForward;
    }
    return kind == CollectiveKind::kReduceScatter ? UnitPart::kReduceScatter
           : kind == CollectiveKind::kAllReduce   ? UnitPart::kAllReduce
                                                  : UnitPart::kOther;
  }

  uint32_t unit_id(std::string_view fqn) {
    const auto [it, fresh] =
        units_.try_emplace(std::string(fqn), static_cast<uint32_t>(out_.units.size()));
    if (fresh) {
      out_.units.emplace_back(fqn);
    }
    return it->second;
  }

  void note(std::string message, int64_t count) {
    trace::add_diagnostic(out_.diagnostics, Severity::kNote, std::move(message), count);
  }

  const Trace& trace_;
  const TimelineOptions& options_;
  ActionIndex actions_;
  RangeFinder ranges_;
  Timeline out_;
  std::unordered_map<uint32_t, uint32_t> launches_;  // correlation → event
  std::unordered_map<uint32_t, Origin> host_calls_;  // collective's event → the call
  std::unordered_map<std::string, uint32_t> units_;
  std::vector<Interval> compute_, copy_, span_;
  std::map<uint32_t, std::vector<Interval>> busy_;
};

}  // namespace

std::string_view name_of(UnitPart part) {
  constexpr std::string_view kNames[] = {"all_gather_forward", "all_gather_backward",
                                         "reduce_scatter", "all_reduce", "other"};
  return kNames[static_cast<size_t>(part)];
}

Timeline make_timeline(const Trace& trace, const TimelineOptions& options) {
  return Builder(trace, options).build();
}

}  // namespace shardlens::analysis
