#include "sim/calibrate/observation.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/timeline/timeline.h"
#include "sim/calibrate/launched_kernels.h"
#include "sim/calibrate/outside_time.h"
#include "sim/calibrate/replicated_observation.h"
#include "sim/calibrate/slowdown.h"

namespace shardlens::sim {
namespace {

using analysis::Interval;
using analysis::IntervalSet;
using analysis::Timeline;
using schedule::PlannedItem;
using trace::Category;
using trace::Event;
using trace::Severity;
using trace::Trace;

// Attention's kernels have many names; all other operators are found by their exact name.
bool is_operator(const plan::Operator& op, std::string_view name) {
  if (op.kind != plan::OperatorKind::kAttention) {
    return name == op.name;
  }
  return name.find("scaled_dot_product") != std::string_view::npos &&
         (name.find("backward") != std::string_view::npos) == plan::is_attention_backward(op);
}

double share_within(const IntervalSet& set, const Interval& window) {
  return window.length() == 0 ? 0
                              : static_cast<double>(analysis::length_within(set, window)) /
                                    static_cast<double>(window.length());
}

// The part of a collective in which data moves; before it the rank waited for its peers.
Interval transfer_of(const analysis::Collective& each) {
  return {each.when.end - each.transfer.value_or(each.when.length()), each.when.end};
}

IntervalSet transfers(const Timeline& timeline) {
  std::vector<Interval> each;
  for (const analysis::Collective& collective : timeline.collectives) {
    each.push_back(transfer_of(collective));
  }
  return analysis::union_of(std::move(each));
}

// One rank's steps, matched with the planned order.
class RankObserver {
 public:
  RankObserver(const Trace& trace, const Timeline& timeline, const Observation& about)
      : trace_(trace),
        timeline_(timeline),
        in_(about),
        kernels_(trace, timeline),
        outside_(timeline, kernels_),
        transfers_(transfers(timeline)) {
    collect();
  }

  void observe(std::vector<ObservedStep>& steps, std::vector<trace::Diagnostic>& diagnostics) {
    for (const analysis::Step& step : timeline_.steps) {
      // A step that is only partly in the trace does not match the plan either.
      if (matches(step.host)) {
        steps.push_back(read(step));
      } else {
        trace::add_diagnostic(diagnostics, Severity::kWarning,
                              "steps whose hooks and actions are not those of the plan's steady "
                              "step are left out");
      }
    }
  }

  // When the rank's compute slowed communication: on a device while kernels ran, on the CPU
  // whenever the host did not wait.
  [[nodiscard]] IntervalSet busy() const {
    if (in_.host == HostMode::kAhead || waits_.empty()) {
      return timeline_.compute;
    }
    std::vector<Interval> steps;
    for (const analysis::Step& step : timeline_.steps) {
      steps.push_back(step.host);
    }
    return analysis::subtract(analysis::union_of(std::move(steps)), analysis::union_of(waits_));
  }

 private:
  // A hook, an action, or an operator (`time` to `end`).
  struct Instant {
    Nanoseconds time = 0, end = 0;
    const trace::HookArgs* hook = nullptr;
    const trace::ActionArgs* action = nullptr;
    uint32_t event = 0;
  };

  void collect() {
    std::set<uint32_t> tracks;
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      if (event.category == Category::kShardlens) {
        Instant instant{event.start, event.start, trace_.hook(event), trace_.action(event), i};
        if (instant.hook != nullptr || instant.action != nullptr) {
          instants_.push_back(instant);
          tracks.insert(event.track);
        }
      }
    }
    std::vector<Interval> ranges;
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      if (event.phase != trace::EventPhase::kComplete || !tracks.contains(event.track)) {
        continue;
      }
      if (event.category == Category::kCpuOp) {
        operators_.push_back({event.start, event.end(), nullptr, nullptr, i});
      } else if (event.category == Category::kUserAnnotation &&
                 trace_.name(event).starts_with("FSDP::")) {
        ranges.push_back({event.start, event.end()});
      }
    }
    const auto by_time = [](const auto& a, const auto& b) { return a.time < b.time; };
    std::stable_sort(instants_.begin(), instants_.end(), by_time);
    std::stable_sort(operators_.begin(), operators_.end(), by_time);
    hook_ranges_ = analysis::union_of(std::move(ranges));
    for (const analysis::Collective& each : timeline_.collectives) {
      ends_.push_back(each.when.end);
    }
    std::sort(ends_.begin(), ends_.end());
  }

  [[nodiscard]] static std::vector<Instant>::const_iterator first_of(
      const std::vector<Instant>& sorted, Nanoseconds time) {
    return std::lower_bound(sorted.begin(), sorted.end(), time,
                            [](const Instant& i, Nanoseconds t) { return i.time < t; });
  }

  [[nodiscard]] size_t first_in(const Interval& window) const {
    return static_cast<size_t>(first_of(instants_, window.start) - instants_.begin());
  }

  // A bucket that is rebuilt with the same content keeps its number in a trace, but not in the
  // plan.
  [[nodiscard]] bool same_unit(UnitId seen, UnitId planned) const {
    return seen == planned ||
           (seen < trace_.units.size() && planned < in_.planned.unit_names.size() &&
            planned >= in_.plan.units.size() &&
            trace_.units[seen] == in_.planned.unit_names[planned]);
  }

  static bool communicates(const PlannedItem& item) {
    return item.kind == PlannedItem::Kind::kCommunication || item.kind == PlannedItem::Kind::kWait;
  }

  // Whether the item is a planned hook of a replicated unit that is not in the trace: the engine
  // does not raise these hooks, but simulated runs have them.
  [[nodiscard]] bool is_absent(const PlannedItem& item, size_t next) const {
    if (communicates(item)) {
      return true;  // communication of the model has no instants
    }
    if (item.kind != PlannedItem::Kind::kHook) {
      return false;
    }
    const HookEvent& hook = in_.planned.hooks[item.index];
    const bool replicated =
        hook.unit < in_.plan.units.size() && in_.plan.units[hook.unit].api == plan::Api::kReplicate;
    const trace::HookArgs* seen = next < instants_.size() ? instants_[next].hook : nullptr;
    return replicated &&
           (seen == nullptr || seen->hook.hook != hook.hook || seen->hook.unit != hook.unit);
  }

  // Whether the step has exactly the planned hooks and actions, in the planned order.
  [[nodiscard]] bool matches(const Interval& window) const {
    size_t next = first_in(window);
    for (const PlannedItem& item : in_.planned.order) {
      if (item.kind == PlannedItem::Kind::kOperator || is_absent(item, next)) {
        continue;
      }
      if (next == instants_.size() || instants_[next].time >= window.end) {
        return false;
      }
      const Instant& seen = instants_[next++];
      if (item.kind == PlannedItem::Kind::kHook) {
        const HookEvent& hook = in_.planned.hooks[item.index];
        if (seen.hook == nullptr || seen.hook->hook.hook != hook.hook ||
            !same_unit(seen.hook->hook.unit, hook.unit)) {
          return false;
        }
      } else {
        const schedule::Action& action = in_.planned.actions[item.index].action;
        if (seen.action == nullptr || seen.action->action.op != action.op ||
            !same_unit(seen.action->action.unit, action.unit)) {
          return false;
        }
      }
    }
    return next == instants_.size() || instants_[next].time >= window.end;
  }

  ObservedStep read(const analysis::Step& step) {
    ObservedStep out;
    out.number = step.number;
    out.duration = step.window.length();
    out.items.resize(in_.planned.order.size());
    at_ = step.host.start;
    owner_ = nullptr;
    owner_waits_ = false;
    (void)take_gap();
    hook_end_ = at_;
    size_t next = first_in(step.host);
    bool begun = false;
    for (size_t i = 0; i < in_.planned.order.size(); ++i) {
      const PlannedItem& item = in_.planned.order[i];
      if (item.kind == PlannedItem::Kind::kOperator) {
        const size_t first = i;
        while (i + 1 < in_.planned.order.size() &&
               in_.planned.order[i + 1].kind == PlannedItem::Kind::kOperator) {
          ++i;
        }
        const Nanoseconds limit =
            next < instants_.size() ? std::min(instants_[next].time, step.host.end) : step.host.end;
        read_operators(first, i + 1, limit, out);
        continue;
      }
      if (is_absent(item, next)) {
        continue;
      }
      const Instant& seen = instants_[next++];
      go_to(seen.time);
      if (!begun) {
        begun = true;
        (void)take_gap();
        outside({step.host.start, seen.time}, out);
      }
      owner_ = &out.items[i];
      owner_waits_ = item.kind == PlannedItem::Kind::kAction &&
                     (seen.action->action.op == schedule::Op::kStreamWait ||
                      seen.action->action.op == schedule::Op::kHostWait);
      owner_blocks_ = owner_waits_ && seen.action->action.op == schedule::Op::kHostWait;
      owner_start_ = seen.time;
      hook_end_ = end_of_range(seen.time);
    }
    // The last action ends with its hook's range; the time after that range is not part of it.
    go_to(std::max(at_, std::min(step.host.end, std::max(hook_end_, at_))));
    out.outside += take_gap();
    outside({at_, step.host.end}, out);
    return out;
  }

  // The end of FSDP's range around an instant; the instant itself if there is no range.
  [[nodiscard]] Nanoseconds end_of_range(Nanoseconds time) const {
    const auto after =
        std::upper_bound(hook_ranges_.begin(), hook_ranges_.end(), time,
                         [](Nanoseconds t, const Interval& range) { return t < range.start; });
    return after == hook_ranges_.begin() ? time : std::max(time, std::prev(after)->end);
  }

  // Assigns the host's time until `time`: to the current hook or action until the end of its range,
  // and then to the next operator.
  void go_to(Nanoseconds time) {
    Nanoseconds until = time;
    if (owner_ != nullptr) {
      // An action without a range around it (optimizer_done) gets no time; the time after it
      // belongs to the next operator.
      until = hook_end_ > owner_start_ ? std::clamp(hook_end_, at_, time) : at_;
      give_owner({at_, until});
      at_ = until;
    }
    if (time > at_) {
      gap_ += time - at_;
      gap_beside_ += analysis::length_within(transfers_, {at_, time});
      at_ = time;
    }
    owner_ = nullptr;
  }

  void give_owner(const Interval& when) {
    Nanoseconds waited = 0;
    if (owner_waits_ && in_.host == HostMode::kAhead) {
      // A host that runs ahead waits for an event of any stream: FSDP1's rate limiter waits for the
      // compute stream.
      waited = owner_blocks_ ? when.length() : 0;
    } else if (owner_waits_) {
      // It waited until the end of the last collective that ended in this interval.
      const auto after = std::upper_bound(ends_.begin(), ends_.end(), when.end);
      waited =
          after == ends_.begin() ? 0 : std::max<Nanoseconds>(0, *std::prev(after) - when.start);
    }
    owner_->waited = waited;
    waits_.push_back({when.start, when.start + waited});
    owner_->host = when.length() - waited;
    if (in_.host == HostMode::kCompute) {
      owner_->host_beside = share_within(transfers_, {when.start + waited, when.end});
      read_copies({when.start + waited, when.end}, *owner_);
    } else {
      const LaunchedKernels::Sum found = kernels_.within(when, analysis::Nature::kCopy);
      owner_->run = found.count > 0 ? found.duration : -1;
    }
  }

  // Time of the operators that an action runs; operators nested in another are not counted again.
  void read_copies(const Interval& when, ObservedItem& item) const {
    Nanoseconds within = when.start, beside = 0;
    for (auto each = first_of(operators_, when.start);
         each != operators_.end() && each->end <= when.end; ++each) {
      if (each->time >= within &&
          !analysis::is_c10d_operator(trace_.name(trace_.events[each->event]))) {
        item.copied += each->end - each->time;
        beside += analysis::length_within(transfers_, {each->time, each->end});
        within = each->end;
      }
    }
    item.copied_beside =
        item.copied == 0 ? 0 : static_cast<double>(beside) / static_cast<double>(item.copied);
  }

  // The n-th planned operator of a name between two hooks is matched with the n-th of that name
  // that ran there. The planned order is not required, since autograd accumulates gradients when
  // they become ready.
  void read_operators(size_t first, size_t last, Nanoseconds limit, ObservedStep& step) {
    const Nanoseconds from = owner_ != nullptr ? std::max(at_, hook_end_) : at_;
    auto seen = first_of(operators_, from);
    std::vector<bool> found(last - first, false);
    Nanoseconds within = from;  // end of the last match; operators before it are nested in it
    for (; seen != operators_.end() && seen->time < limit; ++seen) {
      if (seen->time < within) {
        continue;
      }
      const std::string_view name = trace_.name(trace_.events[seen->event]);
      for (size_t i = first; i < last; ++i) {
        const plan::Operator& op = in_.workload.operators[in_.planned.order[i].index];
        if (!found[i - first] && is_operator(op, name)) {
          found[i - first] = true;
          within = seen->end;
          read_operator(op, *seen, step.items[i], step);
          break;
        }
      }
    }
  }

  // Assigns the unassigned host time to an operator.
  void give_gap(ObservedItem& item) {
    const Nanoseconds beside = std::exchange(gap_beside_, 0);
    item.host = std::exchange(gap_, 0);
    if (in_.host == HostMode::kCompute && item.host > 0) {
      item.host_beside = static_cast<double>(beside) / static_cast<double>(item.host);
    }
  }

  // Returns the unassigned host time, which is then outside the schedule.
  Nanoseconds take_gap() {
    gap_beside_ = 0;
    return std::exchange(gap_, 0);
  }

  void read_operator(const plan::Operator& op,
                     const Instant& seen,
                     ObservedItem& item,
                     ObservedStep& step) {
    if (op.phase == plan::Phase::kOptimizer) {
      // The time before an optimizer's operator is the gradient norm and the optimizer's own loop.
      go_to(std::clamp(hook_end_, at_, seen.time));
      step.outside += take_gap();
      outside({at_, seen.time}, step);
      at_ = seen.time;
    } else {
      go_to(seen.time);
      give_gap(item);
    }
    const Interval when{seen.time, seen.end};
    if (in_.host == HostMode::kAhead) {
      item.host += when.length();
      const LaunchedKernels::Sum found_kernels = kernels_.within(when, analysis::Nature::kCompute);
      item.run = found_kernels.count > 0 ? found_kernels.duration : -1;
      item.beside = found_kernels.beside;
    } else {
      item.run = when.length();
      item.beside = share_within(transfers_, when);
    }
    at_ = seen.end;
  }

  void outside(const Interval& when, ObservedStep& step) { outside_.add(in_.host, when, step); }

  const Trace& trace_;
  const Timeline& timeline_;
  const Observation& in_;
  std::vector<Instant> instants_, operators_;  // by time
  LaunchedKernels kernels_;
  OutsideTime outside_;
  IntervalSet hook_ranges_, transfers_;
  std::vector<Nanoseconds> ends_;  // ends of collectives
  std::vector<Interval> waits_;    // when the host waited
  // While a step is read: the host's time is assigned up to `at_`; after it `owner_` gets the time
  // until `hook_end_`, and the next operator gets `gap_`.
  Nanoseconds at_ = 0, hook_end_ = 0, owner_start_ = 0, gap_ = 0, gap_beside_ = 0;
  ObservedItem* owner_ = nullptr;
  // The owner waits for an event; the host blocks until the event is complete.
  bool owner_waits_ = false, owner_blocks_ = false;
};

// The hardware whose collectives an emulated run modelled; "": the run was not emulated.
std::string emulated_hardware(const trace::Run& run) {
  const auto about = nlohmann::json::parse(run.environment, nullptr, false);
  if (!about.is_object() || about.value("numerics", nlohmann::json()) != "emulated" ||
      !about.contains("options") || !about["options"].is_object()) {
    return {};
  }
  const auto hardware = about["options"].find("hardware");
  return hardware != about["options"].end() && hardware->is_string() ? hardware->get<std::string>()
                                                                     : "ab:5000:inf";
}

void observe_sharded_steps(const trace::Run& run,
                           std::span<const Timeline> timelines,
                           Observation& out) {
  std::vector<IntervalSet> busy;
  for (size_t i = 0; i < timelines.size(); ++i) {
    RankObserver rank(run.traces[i], timelines[i], out);
    rank.observe(out.steps, out.diagnostics);
    busy.push_back(rank.busy());
  }
  observe_collectives(timelines, busy, timelines.size(), {}, out);
}

}  // namespace

void observe_collectives(std::span<const Timeline> timelines,
                         std::span<const IntervalSet> busy,
                         size_t observed,
                         const GroupSizes& unnamed,
                         Observation& out) {
  // Compute on one rank slows the transfer for all ranks, so their shares are averaged. An
  // all-to-all takes as long as its largest message.
  std::map<std::pair<uint32_t, uint32_t>, Mean> shares;  // by the last rank and its index
  std::map<std::pair<uint32_t, uint32_t>, Bytes> largest;
  for (size_t rank = 0; rank < timelines.size(); ++rank) {
    for (const analysis::Collective& each : timelines[rank].collectives) {
      if (each.transfer) {
        shares[{each.last_rank, each.last_index}].add(share_within(busy[rank], transfer_of(each)));
        Bytes& bytes = largest[{each.last_rank, each.last_index}];
        bytes = std::max(bytes, each.bytes);
      }
    }
  }
  for (size_t rank = 0; rank < timelines.size(); ++rank) {
    for (const analysis::Collective& each : timelines[rank].collectives) {
      const int64_t ranks = each.ranks > 0                            ? each.ranks
                            : each.kind == CollectiveKind::kAllReduce ? unnamed.all_reduce
                                                                      : unnamed.others;
      if (!each.kind || each.bytes <= 0 || ranks < 2) {
        continue;
      }
      const Nanoseconds transfer = transfer_of(each).length();
      ObservedCollective& seen = out.collectives.emplace_back();
      seen.rank = rank;
      seen.called = each.issued.value_or(each.when.start);
      seen.kind = *each.kind;
      seen.ranks = static_cast<int>(ranks);
      seen.bytes = each.transfer ? largest[{each.last_rank, each.last_index}] : each.bytes;
      seen.duration = transfer;
      seen.beside = each.transfer ? shares[{each.last_rank, each.last_index}].value()
                                  : share_within(busy[rank], transfer_of(each));
      if (rank < observed && each.transfer) {
        seen.waited = each.when.length() - transfer;
      }
    }
  }
}

const trace::Diagnostic* unreadable_plan(const trace::Run& run) {
  for (const trace::Diagnostic& each : run.diagnostics) {
    if (each.message.starts_with("the planned order is not known")) {
      return &each;
    }
  }
  return nullptr;
}

Observation observe(const trace::Run& run) {
  return observe(analysis::AnalyzedRun(run));
}

Observation observe(const analysis::AnalyzedRun& run) {
  const trace::Run& opened = run.run();
  if (!opened.planned) {
    const trace::Diagnostic* why = unreadable_plan(opened);
    throw InputError(opened.source,
                     "not a capture: it has no plan.json and workload.json that can be read" +
                         (why == nullptr ? "" : "; " + why->message));
  }
  Observation out;
  out.source = opened.source;
  out.plan = opened.planned->plan;
  out.workload = opened.planned->workload;
  out.settings = opened.planned->settings;
  out.config = opened.planned->config;
  out.planned = schedule::planned_step(out.workload, out.plan, 3, out.settings);
  out.emulated = emulated_hardware(opened);
  const std::span<const Timeline> timelines = run.matched();
  out.diagnostics = run.matching().diagnostics;
  const bool device = timelines.front().device;
  out.host = device ? HostMode::kAhead : HostMode::kCompute;
  size_t steps = 0;
  for (const Timeline& timeline : timelines) {
    steps += timeline.steps.size();
  }
  const bool replicated = out.plan.is_replicated();
  bool by_hooks = !replicated;
  if (replicated) {
    const std::vector<trace::Diagnostic> before = out.diagnostics;
    by_hooks = !observe_replicated_steps(run, out);
    if (by_hooks) {  // a simulated run has hooks and actions, but no Reducer
      out.collectives.clear();
      out.diagnostics = before;
    }
  }
  if (by_hooks) {
    observe_sharded_steps(opened, timelines, out);
  }
  if (steps == 0) {
    throw InputError(opened.source, "no steps in the trace: it has no ProfilerStep ranges");
  }
  if (out.steps.empty()) {
    throw InputError(opened.source,
                     fmt::format("none of its {} steps has the {} of the steady step in its "
                                 "plan.json{}",
                                 steps, replicated ? "buckets" : "hooks and actions",
                                 replicated ? ": record three steps or more" : ""));
  }
  return out;
}

}  // namespace shardlens::sim
