#include "sim/calibrate/program_reader.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string_view>
#include <utility>

#include "core/schedule/collective_of.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/fsdp_log/joined_forwards.h"
#include "profiler/analysis/recover/recorded_operators.h"

namespace shardlens::sim {
namespace {

using analysis::FsdpCall;
using analysis::FsdpEvent;
using analysis::Interval;
using analysis::Timeline;
using schedule::Op;
using schedule::PlannedItem;
using trace::Category;
using trace::Event;

// The action that issues a collective of this kind.
std::optional<Op> op_of(CollectiveKind kind) {
  for (size_t op = 0; op < schedule::kOpCount; ++op) {
    if (schedule::collective_of(static_cast<Op>(op)) == kind) {
      return static_cast<Op>(op);
    }
  }
  return std::nullopt;
}

// A view, or an operator whose sizes are not known: the cost model has no time for it.
bool has_no_size(const plan::Operator& op) {
  return op.read == 0 && op.written == 0 && op.flops == 0;
}

// By which communications of a unit are told apart. The size of an all-to-all says nothing: which
// rows go to which experts changes from step to step.
Bytes size_to_match(const plan::Communication& each) {
  return each.kind == CollectiveKind::kAllToAll ? 0 : each.bytes;
}

// Cuts ranges that contain each other into pieces that do not overlap.
class Cutter {
 public:
  explicit Cutter(std::vector<Piece>& out) : out_(out) {}

  void add(const Piece& piece, uint32_t depth) {
    advance(piece.when.start);
    const auto place = std::upper_bound(open_.begin(), open_.end(), depth,
                                        [](uint32_t d, const Open& o) { return d < o.depth; });
    open_.insert(place, {piece, depth});
  }
  void finish() { advance(std::numeric_limits<Nanoseconds>::max()); }

 private:
  struct Open {
    Piece piece;
    uint32_t depth;
  };

  void advance(Nanoseconds until) {
    while (!open_.empty()) {
      const Open& top = open_.back();
      const Nanoseconds end = std::min(until, top.piece.when.end);
      if (end > at_) {
        out_.push_back(top.piece);
        out_.back().when = {std::max(at_, top.piece.when.start), end};
        at_ = end;
      }
      if (top.piece.when.end > until) {
        return;
      }
      open_.pop_back();
    }
    at_ = std::max(at_, std::min(until, std::numeric_limits<Nanoseconds>::max() - 1));
  }

  std::vector<Piece>& out_;
  std::vector<Open> open_;  // by depth
  Nanoseconds at_ = std::numeric_limits<Nanoseconds>::min();
};

}  // namespace

ProgramReader::ProgramReader(const trace::Trace& trace,
                             const Timeline& timeline,
                             const Observation& about,
                             const UnitNames& units)
    : trace_(trace),
      timeline_(timeline),
      in_(about),
      units_(units),
      index_(trace, timeline),
      passes_(analysis::training_passes(timeline.fsdp)) {
  find_positions();
  find_leaves();
  find_issued();
  if (!in_.workload.communications.empty()) {
    recorded_ = recorded_communications(trace, timeline, units);
  }
}

void ProgramReader::find_positions() {
  operators_.resize(in_.workload.operators.size());
  communications_.resize(in_.workload.communications.size());
  for (size_t i = 0; i < in_.planned.order.size(); ++i) {
    const PlannedItem& item = in_.planned.order[i];
    if (item.kind == PlannedItem::Kind::kOperator) {
      operators_[item.index].push_back(i);
    } else if (item.kind == PlannedItem::Kind::kHook) {
      const HookEvent& hook = in_.planned.hooks[item.index];
      hooks_[{hook.hook, hook.unit}].push_back(i);
    } else if (item.kind == PlannedItem::Kind::kCommunication) {
      communications_[item.index].emplace_back(i, i);
    } else if (item.kind == PlannedItem::Kind::kWait) {
      communications_[item.index].back().second = i;
    } else if (item.kind == PlannedItem::Kind::kAction) {
      const schedule::Action& action = in_.planned.actions[item.index].action;
      // The copies of a reduction over one rank are in one range: see sim::copy_time().
      const bool second = action.op == Op::kReduceCopyIn &&
                          action.buffer.kind == schedule::BufferKind::kReduceOutput;
      if (!second) {
        actions_[{action.op, action.unit}].push_back(i);
      }
    }
  }
  for (uint32_t i = 0; i < in_.workload.operators.size(); ++i) {
    const plan::Operator& op = in_.workload.operators[i];
    named_[{op.phase, op.unit, op.name}].push_back(i);
  }
  for (uint32_t i = 0; i < in_.workload.communications.size(); ++i) {
    const plan::Communication& each = in_.workload.communications[i];
    alike_[{each.kind, each.phase, each.unit, size_to_match(each)}].push_back(i);
  }
}

std::optional<UnitId> ProgramReader::unit_of(const std::string& name) const {
  const auto found = units_.find(name);
  return found == units_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<size_t> ProgramReader::position(const Action& action, size_t count) const {
  const auto found = actions_.find(action);
  return found == actions_.end() || count >= found->second.size()
             ? std::nullopt
             : std::optional(found->second[count]);
}

// Whether the operator is FSDP's own work.
bool ProgramReader::in_fsdp(const Event& event) const {
  const std::vector<FsdpEvent>& events = timeline_.fsdp.events;
  auto after = std::upper_bound(events.begin(), events.end(), event.start,
                                [](Nanoseconds t, const FsdpEvent& e) { return t < e.when.start; });
  for (int looked = 0; after != events.begin() && looked < 16; ++looked) {
    --after;
    if (after->track == event.track && event.start < after->when.end) {
      return true;
    }
  }
  return false;
}

// The operators of the model and of the optimizer, as recover_workload() takes them.
void ProgramReader::find_leaves() {
  const std::vector<bool> recomputed = analysis::recomputed_operators(trace_, timeline_.sections);
  for (const uint32_t index : analysis::leaf_operators(trace_)) {
    const Event& event = trace_.events[index];
    const analysis::Owner owner = timeline_.sections.at(event.track, event.start);
    if (owner.section == analysis::Section::kNone || in_fsdp(event)) {
      continue;
    }
    const std::string name = owner.unit == kNoUnit ? "" : timeline_.fsdp.units[owner.unit].fqn;
    leaves_.push_back(
        {index, recomputed[index] ? plan::Phase::kRecompute : analysis::phase_of(owner.section),
         unit_of(name).value_or(0)});
  }
  std::stable_sort(leaves_.begin(), leaves_.end(), [this](const Leaf& a, const Leaf& b) {
    return trace_.events[a.event].start < trace_.events[b.event].start;
  });
}

// The collectives that the plan's units issue.
void ProgramReader::find_issued() {
  for (const analysis::Collective& each : timeline_.collectives) {
    if (each.kind && each.unit && each.part != analysis::UnitPart::kOther &&
        each.issuer != trace::kNoIndex) {
      issued_.push_back({trace_.events[each.issuer].start, &each});
    }
  }
  std::ranges::stable_sort(issued_, {}, &Issued::time);
}

std::span<const ProgramReader::Issued> ProgramReader::issued_in(const Interval& host) const {
  return in_window(issued_, host, &Issued::time);
}

std::span<const FsdpEvent> ProgramReader::events_in(const Interval& host) const {
  return in_window(timeline_.fsdp.events, host, [](const FsdpEvent& e) { return e.when.start; });
}

std::span<const ProgramReader::Leaf> ProgramReader::leaves_in(const Interval& host) const {
  return in_window(leaves_, host,
                   [this](const Leaf& leaf) { return trace_.events[leaf.event].start; });
}

// The start of each microbatch's forward in the step.
std::span<const Nanoseconds> ProgramReader::passes_in(const Interval& host) const {
  return in_window(passes_, host, std::identity());
}

// The microbatch of the step that runs at an instant.
size_t ProgramReader::pass_at(Nanoseconds instant, const Interval& host) const {
  const std::span<const Nanoseconds> passes = passes_in(host);
  const auto after = std::ranges::upper_bound(passes, instant);
  return static_cast<size_t>(std::max<std::ptrdiff_t>(1, after - passes.begin()) - 1);
}

bool ProgramReader::evaluates_in(const Interval& host) const {
  return std::ranges::any_of(events_in(host), [](const FsdpEvent& e) {
    return e.call == FsdpCall::kPreForward && e.forward == e.pass && !e.grad;
  });
}

bool ProgramReader::optimizes_in(const Interval& host) const {
  return std::ranges::any_of(
      leaves_in(host), [](const Leaf& leaf) { return leaf.phase == plan::Phase::kOptimizer; });
}

bool ProgramReader::same_collectives(const Interval& host) const {
  std::map<Action, size_t> seen;
  for (const Issued& issued : issued_in(host)) {
    const std::optional<Op> op = op_of(*issued.collective->kind);
    const auto unit = unit_of(timeline_.units[*issued.collective->unit]);
    if (op && unit) {
      ++seen[{*op, *unit}];
    }
  }
  for (const auto& [action, positions] : actions_) {
    if (schedule::collective_of(action.first)) {
      const auto found = seen.find(action);
      if ((found == seen.end() ? 0 : found->second) != positions.size()) {
        return false;
      }
      if (found != seen.end()) {
        seen.erase(found);
      }
    }
  }
  return seen.empty();
}

void ProgramReader::add_ranges(const Interval& host, std::vector<Range>& out) const {
  constexpr uint32_t kHook = 0, kAction = 1;
  std::map<FsdpCall, std::map<UnitId, size_t>> counts;
  const bool device = in_.host == HostMode::kAhead;
  for (const FsdpEvent& e : events_in(host)) {
    const auto unit = unit_of(timeline_.fsdp.units[e.unit].fqn);
    if (!unit) {
      continue;
    }
    const size_t count = counts[e.call][*unit]++;
    if (const auto hook = analysis::hook_of(e.call)) {
      const auto found = hooks_.find({*hook, *unit});
      if (found != hooks_.end()) {
        // A second call of the same hook (an output of a tuple each) is part of the first one.
        const size_t at = found->second[std::min(count, found->second.size() - 1)];
        out.push_back({{Piece::Kind::kWaitingCall, Piece::Gap::kNext, e.when, at}, kHook});
      }
      continue;
    }
    if (e.call == FsdpCall::kReduceWait) {
      const auto ends = hooks_.find({Hook::kBackwardEnd, 0});
      if (ends != hooks_.end()) {
        const size_t at =
            ends->second[std::min<size_t>(pass_at(e.when.start, host), ends->second.size() - 1)];
        out.push_back({{Piece::Kind::kWaitingCall, Piece::Gap::kNext, e.when, at}, kHook});
      }
      continue;
    }
    const bool reduces = e.call == FsdpCall::kReduce;
    const Op op = e.call == FsdpCall::kUnshard   ? Op::kAllGather
                  : e.call == FsdpCall::kCopyOut ? Op::kCopyOut
                                                 : Op::kReduceScatter;
    auto at = position({op, *unit}, count);
    if (!at && reduces) {
      at = position({Op::kAllReduce, *unit}, count);
    }
    if (at) {
      const bool waits = e.call == FsdpCall::kCopyOut && !device;
      out.push_back(
          {{waits ? Piece::Kind::kWaitingCall : Piece::Kind::kCall, Piece::Gap::kNext, e.when, *at},
           kAction});
    }
    add_copies(e, {{{op, *unit}, count}}, out);
  }
}

// The operators in the range of an all-gather, a copy-out or a reduction; those in another operator
// are not counted again.
void ProgramReader::add_copies(const FsdpEvent& event,
                               const Counts& counts,
                               std::vector<Range>& out) const {
  constexpr uint32_t kCopy = 2, kCopyInCall = 4;
  const auto& [action, count] = *counts.begin();
  const auto [op, unit] = action;
  const auto first = std::lower_bound(
      index_.operators.begin(), index_.operators.end(), event.when.start,
      [this](uint32_t i, Nanoseconds time) { return trace_.events[i].start < time; });
  bool called = false;
  Nanoseconds within = event.when.start, call_end = event.when.start;
  for (auto each = first;
       each != index_.operators.end() && trace_.events[*each].start < event.when.end; ++each) {
    const Event& copy = trace_.events[*each];
    const std::string_view name = trace_.name(copy);
    if (copy.track != event.track || copy.start < within || analysis::is_redistribution(name)) {
      continue;
    }
    if (analysis::is_c10d_operator(name) && !name.starts_with("fsdp::")) {
      called = true;
      call_end = std::max(call_end, copy.end());
      continue;
    }
    within = copy.end();
    const bool in_call = copy.start < call_end;
    const Op of = op == Op::kAllGather ? Op::kCopyIn
                  : op == Op::kCopyOut ? Op::kCopyOut
                  : called && !in_call ? Op::kStoreGrad
                                       : Op::kReduceCopyIn;
    if (const auto at = position({of, unit}, count)) {
      out.push_back({{Piece::Kind::kCopy, Piece::Gap::kNext, {copy.start, copy.end()}, *at},
                     in_call ? kCopyInCall : kCopy});
    }
  }
}

void ProgramReader::add_collectives(const Interval& host, std::vector<Range>& out) const {
  constexpr uint32_t kCollective = 3;
  Counts counts;
  for (const Issued& issued : issued_in(host)) {
    const analysis::Collective* each = issued.collective;
    const std::optional<Op> op = op_of(*each->kind);
    const auto unit = unit_of(timeline_.units[*each->unit]);
    if (!op || !unit) {
      continue;
    }
    const auto at = position({*op, *unit}, counts[{*op, *unit}]++);
    if (!at) {
      continue;
    }
    const Event& call = trace_.events[each->issuer];
    out.push_back(
        {{Piece::Kind::kCall, Piece::Gap::kNext, {call.start, call.end()}, *at}, kCollective});
    if (in_.blocking[static_cast<size_t>(*each->kind)]) {
      const Interval rest{std::min(call.end(), each->when.start), each->when.start};
      out.push_back({{Piece::Kind::kCall, Piece::Gap::kNext, rest, *at}, kCollective});
      out.push_back({{Piece::Kind::kWait, Piece::Gap::kNext, each->when, *at}, kCollective});
    }
  }
}

// [Note: Whose waiting] On the CPU the host sleeps while it waits for a collective that runs. What
// it spends in the call and in the wait before the collective begins and after it has ended is time
// of the communication itself, and delays it: its thread, too, may begin late. What it spends
// between the call and the wait while the collective runs, or has run, is time before the wait.
void ProgramReader::add_communications(const Interval& host,
                                       std::span<const Nanoseconds> passes,
                                       std::vector<Range>& out) const {
  constexpr uint32_t kCollective = 3;
  std::map<std::tuple<size_t, CollectiveKind, plan::Phase, UnitId, Bytes>, size_t> counts;
  const auto in_step =
      in_window(recorded_, host, [](const RecordedCommunication& each) { return each.call.start; });
  for (const RecordedCommunication& each : in_step) {
    const auto pass = std::upper_bound(passes.begin(), passes.end(), each.call.start);
    if (pass == passes.begin()) {
      continue;
    }
    const auto microbatch = static_cast<size_t>(pass - passes.begin()) - 1;
    const plan::Communication& what = each.what;
    const Bytes size = size_to_match(what);
    const size_t count = counts[{microbatch, what.kind, what.phase, what.unit, size}]++;
    const auto found = alike_.find({what.kind, what.phase, what.unit, size});
    if (found == alike_.end() || count >= found->second.size() ||
        microbatch >= communications_[found->second[count]].size()) {
      continue;
    }
    const auto& [at, wait] = communications_[found->second[count]][microbatch];
    const auto add = [&](Piece::Kind kind, Piece::Gap gap, const Interval& when, size_t item) {
      if (when.length() > 0) {
        out.push_back({{kind, gap, when, item}, kCollective});
      }
    };
    const bool device = in_.host == HostMode::kAhead;
    for (const bool waits : {false, true}) {
      const Interval& when = waits ? each.waited : each.call;
      const Interval runs{device ? when.end : std::clamp(each.when.start, when.start, when.end),
                          device ? when.end : std::clamp(each.when.end, when.start, when.end)};
      const Piece::Gap gap = waits ? Piece::Gap::kItem : Piece::Gap::kNext;
      const bool over = waits && each.when.end <= when.start;
      add(Piece::Kind::kCall, gap, {when.start, runs.start}, at);
      add(Piece::Kind::kWait, gap, runs, wait);
      add(Piece::Kind::kCall, gap, {runs.end, when.end}, over ? wait : at);
    }
  }
}

void ProgramReader::add_operators(const Interval& host,
                                  std::span<const Nanoseconds> passes,
                                  std::vector<Range>& out) const {
  constexpr uint32_t kOperator = 5;
  std::map<std::tuple<size_t, plan::Phase, UnitId, std::string_view>, size_t> counts;
  for (const Leaf& leaf : leaves_in(host)) {
    const Event& event = trace_.events[leaf.event];
    const auto pass = std::upper_bound(passes.begin(), passes.end(), event.start);
    const bool optimizes = leaf.phase == plan::Phase::kOptimizer;
    if (pass == passes.begin()) {
      continue;
    }
    const size_t microbatch = optimizes ? 0 : static_cast<size_t>(pass - passes.begin()) - 1;
    const std::string_view name = trace_.name(event);
    const auto alike = named_.find({leaf.phase, leaf.unit, std::string(name)});
    const size_t count = counts[{microbatch, leaf.phase, leaf.unit, name}]++;
    if (alike == named_.end() || count >= alike->second.size()) {
      continue;
    }
    const uint32_t index = alike->second[count];
    if (has_no_size(in_.workload.operators[index]) || microbatch >= operators_[index].size()) {
      continue;
    }
    out.push_back({{Piece::Kind::kOperator,
                    optimizes ? Piece::Gap::kOutside : Piece::Gap::kItem,
                    {event.start, event.end()},
                    operators_[index][microbatch]},
                   kOperator});
  }
}

std::string ProgramReader::difference(const analysis::Step& step) const {
  const auto microbatches = static_cast<int64_t>(passes_in(step.host).size());
  if (microbatches == 0) {
    return std::string(kNoBackward);
  }
  if (evaluates_in(step.host)) {
    return "an evaluation ran in them";
  }
  if (microbatches != in_.settings.accumulate) {
    return "they have another number of microbatches";
  }
  if (!same_collectives(step.host)) {
    return "their collectives are not those of the plan";
  }
  const bool optimizes = std::ranges::any_of(in_.workload.operators, [](const plan::Operator& op) {
    return op.phase == plan::Phase::kOptimizer;
  });
  return optimizes && !optimizes_in(step.host) ? "the optimizer did not step in them" : "";
}

ObservedStep ProgramReader::read(const analysis::Step& step) const {
  const std::span<const Nanoseconds> passes = passes_in(step.host);
  std::vector<Range> ranges;
  add_ranges(step.host, ranges);
  add_collectives(step.host, ranges);
  add_communications(step.host, passes, ranges);
  add_operators(step.host, passes, ranges);
  std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.piece.when.start != b.piece.when.start ? a.piece.when.start < b.piece.when.start
                                                    : a.depth < b.depth;
  });
  std::vector<Piece> pieces;
  Cutter cutter(pieces);
  for (const Range& range : ranges) {
    cutter.add(range.piece, range.depth);
  }
  cutter.finish();
  StepReader reader(index_, in_);
  size_t begun = 0;  // passes; the time before the first piece of each is the training loop's
  for (Piece& piece : pieces) {
    if (begun < passes.size() && piece.when.start >= passes[begun]) {
      piece.gap = Piece::Gap::kOutside;
      ++begun;
    }
    reader.add(piece);
  }
  ObservedStep out = reader.read(step);
  out.window = step.host;
  return out;
}

std::array<bool, kCollectiveKindCount> blocking_kinds(std::span<const trace::Trace> traces,
                                                      std::span<const Timeline> timelines) {
  std::array<Nanoseconds, kCollectiveKindCount> waited{}, all{};
  for (size_t rank = 0; rank < traces.size(); ++rank) {
    const trace::Trace& trace = traces[rank];
    if (timelines[rank].device) {
      return {};
    }
    std::vector<std::vector<Nanoseconds>> instants(trace.tracks.size());  // begins and ends
    const bool functional = timelines[rank].fsdp.source == analysis::FsdpSource::kProgram;
    for (const Event& event : trace.events) {
      const std::string_view name = trace.name(event);
      if (event.phase == trace::EventPhase::kComplete &&
          !(functional &&
            (analysis::is_c10d_operator(name) || analysis::is_helper_operator(name)))) {
        instants.at(event.track).push_back(event.start);
        instants.at(event.track).push_back(event.end());
      }
    }
    for (std::vector<Nanoseconds>& track : instants) {
      std::sort(track.begin(), track.end());
    }
    for (const analysis::Collective& each : timelines[rank].collectives) {
      if (!each.kind || each.part == analysis::UnitPart::kOther || each.issuer == trace::kNoIndex) {
        continue;
      }
      const Event& call = trace.events[each.issuer];
      const std::vector<Nanoseconds>& track = instants.at(call.track);
      const auto next = std::upper_bound(track.begin(), track.end(), call.end());
      const auto kind = static_cast<size_t>(*each.kind);
      const Nanoseconds until = functional ? each.needed_at.value_or(each.when.end) : each.when.end;
      all[kind] += each.when.length();
      waited[kind] += next != track.end() && *next >= until ? each.when.length() : 0;
    }
  }
  std::array<bool, kCollectiveKindCount> out{};
  for (size_t kind = 0; kind < out.size(); ++kind) {
    out[kind] = all[kind] > 0 && waited[kind] >= all[kind] - all[kind] / 10;
  }
  if (timelines.front().fsdp.source == analysis::FsdpSource::kProgram) {
    out[static_cast<size_t>(CollectiveKind::kAllGather)] = false;
  }
  return out;
}

}  // namespace shardlens::sim
