#include "sim/calibrate/replicated_observation.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/schedule/microbatches.h"
#include "profiler/analysis/matching.h"
#include "profiler/analysis/names.h"
#include "profiler/analysis/nesting.h"
#include "sim/calibrate/launched_kernels.h"
#include "sim/calibrate/recorded_tree.h"

namespace shardlens::sim {
namespace {

using analysis::DdpPass;
using analysis::Interval;
using analysis::IntervalSet;
using analysis::Timeline;
using schedule::PlannedItem;
using trace::Category;
using trace::Event;

constexpr size_t kNoItem = ~size_t{0};
constexpr std::string_view kAttention = "scaled_dot_product";

// Time of the host and whose it is.
struct Piece {
  enum class Kind : uint8_t { kOperator, kCopy, kCall, kMark };
  enum class Gap : uint8_t { kItem, kOutside, kWait };  // the time before it: whose
  Kind kind = Kind::kMark;
  Gap gap = Gap::kItem;
  Interval when;
  size_t item = kNoItem;
};

IntervalSet data_moves(const Timeline& timeline) {
  std::vector<Interval> each;
  for (const analysis::Collective& collective : timeline.collectives) {
    const Nanoseconds moves = collective.transfer.value_or(collective.when.length());
    each.push_back({collective.when.end - moves, collective.when.end});
  }
  return analysis::union_of(std::move(each));
}

// One step, piece by piece.
class StepReader {
 public:
  StepReader(const trace::Trace& trace, const Timeline& timeline, const Observation& about)
      : trace_(trace),
        timeline_(timeline),
        in_(about),
        kernels_(trace, timeline),
        moves_(data_moves(timeline)) {
    for (const analysis::Collective& each : timeline.collectives) {
      ends_.push_back(each.when.end);
    }
    std::sort(ends_.begin(), ends_.end());
  }

  // Finds the planned operators of a section among those that ran in `when`.
  void find(const Interval& when,
            const std::set<uint32_t>& tracks,
            const std::vector<size_t>& planned,
            Piece::Gap gap) {
    const std::vector<uint32_t> ran = operators_in(when, tracks);
    std::set<std::string_view> names;
    for (const uint32_t index : ran) {
      names.insert(trace_.name(trace_.events[index]));
    }
    std::map<std::string_view, std::deque<size_t>> open;
    for (const size_t position : planned) {
      const plan::Operator& op = in_.workload.operators[in_.planned.order[position].index];
      // Attention's kernels have many names.
      const bool attention = op.kind == plan::OperatorKind::kAttention && !names.contains(op.name);
      open[attention ? kAttention : std::string_view(op.name)].push_back(position);
    }
    Nanoseconds within = when.start;  // the end of the one found last: what lies in it is its part
    for (const uint32_t index : ran) {
      const Event& event = trace_.events[index];
      if (event.start < within) {
        continue;
      }
      const std::string_view name = trace_.name(event);
      auto found = open.find(name);
      if (found == open.end() && name.find(kAttention) != std::string_view::npos) {
        found = open.find(kAttention);
      }
      if (found != open.end() && !found->second.empty()) {
        pieces_.push_back(
            {Piece::Kind::kOperator, gap, {event.start, event.end()}, found->second.front()});
        found->second.pop_front();
        within = event.end();
      }
    }
  }

  void add(Piece piece) { pieces_.push_back(piece); }

  ObservedStep read(const analysis::Step& step) {
    std::stable_sort(pieces_.begin(), pieces_.end(),
                     [](const Piece& a, const Piece& b) { return a.when.start < b.when.start; });
    out_.number = step.number;
    out_.duration = step.window.length();
    out_.items.resize(in_.planned.order.size());
    beside_.resize(out_.items.size());
    at_ = step.host.start;
    for (const Piece& piece : pieces_) {
      if (piece.when.start > at_) {
        take_gap(piece, {at_, piece.when.start});
      }
      take(piece);
      at_ = std::max(at_, piece.when.end);
    }
    outside({at_, step.host.end});
    for (size_t i = 0; i < beside_.size(); ++i) {
      ObservedItem& item = out_.items[i];
      item.host_beside = share(beside_[i].host, item.host);
      item.copied_beside = share(beside_[i].copied, item.copied);
    }

    return std::move(out_);
  }

 private:
  struct Beside {
    Nanoseconds host = 0, copied = 0;
  };

  static double share(Nanoseconds part, Nanoseconds whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }

  [[nodiscard]] std::vector<uint32_t> operators_in(const Interval& when,
                                                   const std::set<uint32_t>& tracks) const {
    std::vector<uint32_t> ran;
    Nanoseconds reducer_until = when.start;
    std::vector<uint32_t> all;
    for (uint32_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      if (event.phase == trace::Phase::kComplete && event.category == Category::kCpuOp &&
          event.start >= when.start && event.start < when.end && tracks.contains(event.track)) {
        all.push_back(i);
      }
    }
    std::stable_sort(all.begin(), all.end(), [&](uint32_t a, uint32_t b) {
      const Event &x = trace_.events[a], &y = trace_.events[b];
      return x.start != y.start ? x.start < y.start : x.duration > y.duration;
    });
    for (const uint32_t i : all) {
      const Event& event = trace_.events[i];
      if (analysis::is_reducer_range(trace_.name(event)) ||
          analysis::is_c10d_operator(trace_.name(event))) {
        reducer_until = std::max(reducer_until, event.end());
      } else if (event.start >= reducer_until) {
        ran.push_back(i);
      }
    }
    return ran;
  }

  void give_host(size_t item, const Interval& when) {
    out_.items[item].host += when.length();
    if (in_.host == HostMode::kCompute) {
      beside_[item].host += analysis::length_within(moves_, when);
    }
  }

  void take_gap(const Piece& piece, const Interval& when) {
    if (piece.gap == Piece::Gap::kOutside) {
      return outside(when);
    }
    Interval own = when;
    if (piece.gap == Piece::Gap::kWait && in_.host == HostMode::kCompute) {
      // It waited until the last collective that ended meanwhile.
      const auto after = std::upper_bound(ends_.begin(), ends_.end(), when.end);
      if (after != ends_.begin() && *std::prev(after) > when.start) {
        own.start = *std::prev(after);
        out_.items[piece.item].waited += own.start - when.start;
      }
    }
    give_host(piece.item, own);
  }

  void take(const Piece& piece) {
    const Interval when{std::max(at_, piece.when.start), std::max(at_, piece.when.end)};
    const bool device = in_.host == HostMode::kAhead;
    if (piece.kind == Piece::Kind::kMark) {
      return;
    }
    ObservedItem& item = out_.items[piece.item];
    if (piece.kind == Piece::Kind::kOperator && !device) {
      item.run = when.length();
      item.beside = share(analysis::length_within(moves_, when), item.run);
      return;
    }
    give_host(piece.item, when);
    if (piece.kind == Piece::Kind::kCopy && !device) {
      item.copied += when.length();
      beside_[piece.item].copied += analysis::length_within(moves_, when);
    } else if (piece.kind != Piece::Kind::kCall && device) {
      const LaunchedKernels::Sum found = kernels_.within(when, analysis::Nature::kCompute);
      if (found.count > 0) {
        item.run = std::max<Nanoseconds>(item.run, 0) + found.duration;
        item.beside = found.beside;
      }
    }
  }

  // The loop's own time, as for sharded runs.
  void outside(const Interval& when) {
    if (when.end <= when.start) {
      return;
    }
    const Nanoseconds compute = analysis::length_within(timeline_.compute, when);
    const IntervalSet running = analysis::unite(timeline_.communication, timeline_.compute);
    const Nanoseconds busy = analysis::length_within(running, when);
    if (in_.host == HostMode::kCompute) {
      out_.outside_communication += busy - compute;
      out_.outside += when.length() - (busy - compute);
      return;
    }
    out_.outside += when.length() -
                    analysis::length_within(analysis::unite(running, timeline_.copy), when) +
                    kernels_.within(when, analysis::Nature::kCompute).duration;
  }

  const trace::Trace& trace_;
  const Timeline& timeline_;
  const Observation& in_;
  LaunchedKernels kernels_;
  IntervalSet moves_;
  std::vector<Nanoseconds> ends_;  // of collectives
  std::vector<Piece> pieces_;
  Nanoseconds at_ = 0;
  ObservedStep out_;
  std::vector<Beside> beside_;  // by item
};

// The Reducer's copies of one microbatch, those in to the launch that they come before, and its
// waits.
void add_reducer(const DdpPass& pass,
                 const std::vector<size_t>& launches,
                 const std::vector<size_t>& waits,
                 StepReader& reader) {
  const auto launch_of = [&](Nanoseconds time) {
    size_t i = 0;
    while (i + 1 < pass.buckets.size() && pass.buckets[i].when.start < time) {
      ++i;
    }
    return launches[i];
  };
  for (const Interval& copy : pass.copies_in) {
    const size_t item = launch_of(copy.start);
    reader.add({Piece::Kind::kCopy, Piece::Gap::kItem, copy, item});
  }
  for (size_t i = 0; i < launches.size(); ++i) {
    reader.add({Piece::Kind::kCall, Piece::Gap::kItem, pass.buckets[i].when, launches[i]});
  }
  // Buckets are waited for and copied back in order, each its own gradients.
  size_t bucket = 0, left = pass.buckets.front().gradients.size();
  for (const Interval& copy : pass.copies_out) {
    while (left == 0 && bucket + 1 < waits.size()) {
      left = pass.buckets[++bucket].gradients.size();
    }
    left -= left > 0 ? 1 : 0;
    reader.add({Piece::Kind::kCopy, Piece::Gap::kWait, copy, waits[bucket]});
  }
}

// The end of the Reducer's waits: where gradients are views, no copy shows it.
Nanoseconds end_of_waits(const DdpPass& pass, const Timeline& timeline, Nanoseconds limit) {
  Nanoseconds end = pass.backward.end;
  if (pass.copies_out.empty() && !timeline.device) {
    for (const analysis::Collective& each : timeline.collectives) {
      const bool own = each.issuer != trace::kNoIndex &&
                       std::any_of(pass.buckets.begin(), pass.buckets.end(),
                                   [&](const auto& b) { return b.call == each.issuer; });
      if (own && each.when.end <= limit) {
        end = std::max(end, each.when.end);
      }
    }
  }
  return end;
}

}  // namespace

bool is_replicated(const plan::ResolvedPlan& plan) {
  return std::all_of(plan.units.begin(), plan.units.end(),
                     [](const plan::Unit& unit) { return unit.api == plan::Api::kReplicate; });
}

void require_replicated(const Observation& recorded, const plan::ResolvedPlan& plan) {
  const bool shards = std::any_of(plan.units.begin(), plan.units.end(), [](const plan::Unit& unit) {
    return unit.api != plan::Api::kReplicate && !unit.parameters.empty();
  });
  if (shards && is_replicated(recorded.plan)) {
    throw InputError(recorded.source,
                     "recorded under DDP, which keeps parameters whole: how long all-gathers and "
                     "reduce-scatters take, and which unit an operator belongs to, is not in the "
                     "trace; record a step of the model under fully_shard (FSDP) to simulate plans "
                     "that shard it");
  }
}

ReplicatedReader::ReplicatedReader(const trace::Trace& trace,
                                   const Timeline& timeline,
                                   const Observation& about)
    : trace_(trace), timeline_(timeline), in_(about) {
  find_positions();
}

void ReplicatedReader::find_positions() {
  for (size_t i = 0; i < in_.planned.order.size(); ++i) {
    const PlannedItem& item = in_.planned.order[i];
    if (item.kind == PlannedItem::Kind::kHook) {
      const Hook hook = in_.planned.hooks[item.index].hook;
      if (hook == Hook::kRootPreForward) {
        microbatches_.emplace_back();
      } else if (hook == Hook::kBackwardEnd && !microbatches_.empty()) {
        microbatches_.back().backward_end = i;
      }
      continue;
    }
    if (microbatches_.empty()) {
      continue;
    }
    Microbatch& microbatch = microbatches_.back();
    if (item.kind == PlannedItem::Kind::kAction) {
      const schedule::Op op = in_.planned.actions[item.index].action.op;
      if (op == schedule::Op::kAllReduce) {
        microbatch.launches.push_back(i);
      } else if (op == schedule::Op::kHostWait) {
        microbatch.waits.push_back(i);
      }
      continue;
    }
    const plan::Phase phase = in_.workload.operators[item.index].phase;
    (phase == plan::Phase::kOptimizer                                ? optimizer_
     : phase == plan::Phase::kForward || phase == plan::Phase::kLoss ? microbatch.forward
                                                                     : microbatch.backward)
        .push_back(i);
  }
}

std::vector<const DdpPass*> ReplicatedReader::passes_of(const analysis::Step& step,
                                                        const analysis::DdpLog& log) {
  std::vector<const DdpPass*> out;
  for (const DdpPass& each : log.passes) {
    if (each.forward.start >= step.host.start && each.forward.start < step.host.end &&
        each.backward.length() > 0) {
      out.push_back(&each);
    }
  }
  return out;
}

// By the names of their actions where the trace has these (ours), else by size.
bool ReplicatedReader::same_buckets(const DdpPass& pass, const Microbatch& planned) const {
  if (pass.buckets.size() != planned.launches.size() ||
      planned.waits.size() != planned.launches.size()) {
    return false;
  }
  std::vector<std::string_view> launched;
  for (const Event& event : trace_.events) {
    const trace::ActionArgs* action =
        event.category == Category::kShardlens ? trace_.action(event) : nullptr;
    if (action != nullptr && action->action.op == schedule::Op::kAllReduce &&
        event.start >= pass.backward.start && event.start < pass.backward.end &&
        action->action.unit < trace_.units.size()) {
      launched.emplace_back(trace_.units[action->action.unit]);
    }
  }
  for (size_t i = 0; i < planned.launches.size(); ++i) {
    const UnitId unit =
        in_.planned.actions[in_.planned.order[planned.launches[i]].index].action.unit;
    const std::string& name = in_.planned.unit_names[unit];
    if (launched.size() == planned.launches.size()) {
      if (launched[i] != name) {
        return false;
      }
      continue;
    }
    const auto bucket = std::find_if(in_.planned.buckets.begin(), in_.planned.buckets.end(),
                                     [&](const auto& each) { return each.name == name; });
    const analysis::DdpBucket& ran = pass.buckets[i];
    const Bytes bytes = ran.numel < 0 ? -1 : ran.numel * size_of(ran.dtype.value_or(DType::kF32));
    if (bucket == in_.planned.buckets.end() || (bytes >= 0 && bytes > bucket->bytes) ||
        (bytes >= 0 && bucket->bytes - bytes >= size_of(DType::kF32) * 1024)) {
      return false;
    }
  }
  return true;
}

std::optional<ObservedStep> ReplicatedReader::read(
    const analysis::Step& step, const std::vector<const DdpPass*>& passes) const {
  if (passes.size() != microbatches_.size() || passes.empty()) {
    return std::nullopt;
  }
  StepReader reader(trace_, timeline_, in_);
  for (size_t i = 0; i < passes.size(); ++i) {
    const DdpPass& pass = *passes[i];
    const Microbatch& planned = microbatches_[i];
    if (!same_buckets(pass, planned)) {
      return std::nullopt;
    }
    const std::set<uint32_t> tracks{pass.forward_track, pass.backward_track};
    const Nanoseconds limit = i + 1 < passes.size() ? passes[i + 1]->forward.start : step.host.end;
    const Nanoseconds computed = std::clamp(pass.compute_end, pass.backward.start, limit);
    reader.add({Piece::Kind::kMark,
                Piece::Gap::kOutside,
                {pass.forward.start, pass.forward.start},
                kNoItem});
    reader.find({pass.forward.start, pass.backward.start}, tracks, planned.forward,
                Piece::Gap::kItem);
    reader.find({pass.backward.start, pass.backward.end}, tracks, planned.backward,
                Piece::Gap::kItem);
    reader.add({Piece::Kind::kMark, Piece::Gap::kItem, {computed, computed}, planned.backward_end});
    if (!planned.launches.empty()) {
      add_reducer(pass, planned.launches, planned.waits, reader);
      const Nanoseconds end = end_of_waits(pass, timeline_, limit);
      reader.add({Piece::Kind::kMark, Piece::Gap::kWait, {end, end}, planned.waits.back()});
    }
  }
  const DdpPass& last = *passes.back();
  reader.find({last.backward.end, step.host.end}, {last.forward_track, last.backward_track},
              optimizer_, Piece::Gap::kOutside);
  return reader.read(step);
}

void serialize_collectives(std::vector<Timeline>& timelines) {
  std::map<std::pair<uint32_t, uint32_t>, Nanoseconds> shortest;  // by who came last
  for (Timeline& timeline : timelines) {
    if (timeline.device) {
      return;
    }
    std::vector<size_t> by_end(timeline.collectives.size());
    std::iota(by_end.begin(), by_end.end(), size_t{0});
    std::stable_sort(by_end.begin(), by_end.end(), [&](size_t a, size_t b) {
      return timeline.collectives[a].when.end < timeline.collectives[b].when.end;
    });
    std::optional<Nanoseconds> before;
    for (const size_t i : by_end) {
      analysis::Collective& each = timeline.collectives[i];
      each.when.start = std::max(each.when.start, before.value_or(each.when.start));
      before = each.when.end;
      if (each.transfer) {
        const std::pair key{each.last_rank, each.last_index};
        const auto [it, fresh] = shortest.try_emplace(key, *each.transfer);
        it->second = std::min({it->second, *each.transfer, each.when.length()});
      }
    }
  }
  for (Timeline& timeline : timelines) {
    for (analysis::Collective& each : timeline.collectives) {
      if (each.transfer) {
        each.transfer = shortest.at({each.last_rank, each.last_index});
      }
    }
  }
}

namespace {

// The step that a recovered pass ends, or what there is of it.
analysis::Step step_of(const analysis::RecoveredPlan& recovered,
                       const Timeline& timeline,
                       const std::vector<const DdpPass*>& passes) {
  const Interval& window = recovered.recorded.window;
  for (const analysis::Step& step : timeline.steps) {
    if (step.host.start <= passes.front()->forward.start && window.end <= step.host.end) {
      return step;
    }
  }
  const Interval whole{passes.front()->forward.start, window.end};
  return {0, whole, whole};
}

std::vector<const DdpPass*> microbatches_of(const analysis::RecoveredPlan& recovered,
                                            const analysis::DdpLog& log) {
  std::vector<const DdpPass*> out;
  for (const DdpPass& each : log.passes) {
    if (each.forward.start <= recovered.recorded.window.start) {
      out.push_back(&each);
    }
  }
  const auto count = static_cast<size_t>(recovered.accumulate);
  return {out.end() - static_cast<std::ptrdiff_t>(std::min(count, out.size())), out.end()};
}

}  // namespace

Observation observe_replicated(const trace::Run& run, const analysis::RecoveredPlan& recovered) {
  Observation out;
  out.source = run.source;
  out.plan = plan::resolve(recovered.plan, recorded_tree(recovered), recovered.world_size);
  out.workload = recovered.recorded.workload;
  out.settings = recorded_settings(run.traces.front(), out.workload);
  out.settings.accumulate = recovered.accumulate;
  out.settings.sync_every_microbatch = recovered.sync_every_microbatch;
  out.planned = schedule::planned_step(out.workload, out.plan, 3, out.settings);
  std::vector<Timeline> timelines;
  for (const trace::Trace& trace : run.traces) {
    timelines.push_back(analysis::make_timeline(trace));
  }
  (void)analysis::match_ranks(run.traces, timelines, out.diagnostics);
  serialize_collectives(timelines);
  out.host = timelines.front().device ? HostMode::kAhead : HostMode::kCompute;
  const analysis::DdpLog log = analysis::read_ddp_log(run.traces.front());
  const std::vector<const DdpPass*> passes = microbatches_of(recovered, log);
  const ReplicatedReader reader(run.traces.front(), timelines.front(), out);
  if (auto step = reader.read(step_of(recovered, timelines.front(), passes), passes)) {
    out.steps.push_back(std::move(*step));
  } else {
    throw InputError(run.source,
                     "the buckets of its last step are not those that DDP makes of its gradients "
                     "(a communication hook, or a list of caps), so that it cannot be replayed; "
                     "record it without them");
  }
  std::vector<IntervalSet> busy;
  for (const Timeline& timeline : timelines) {
    busy.push_back(timeline.compute);
  }
  observe_collectives(timelines, busy, 1, out);
  return out;
}

void observe_replicated_steps(const trace::Run& run,
                              std::vector<Timeline>& timelines,
                              Observation& out) {
  std::vector<IntervalSet> busy;
  for (size_t i = 0; i < timelines.size(); ++i) {
    const analysis::DdpLog log = analysis::read_ddp_log(run.traces[i]);
    const ReplicatedReader reader(run.traces[i], timelines[i], out);
    for (const analysis::Step& step : timelines[i].steps) {
      if (auto read = reader.read(step, ReplicatedReader::passes_of(step, log))) {
        out.steps.push_back(std::move(*read));
      } else {
        trace::add_diagnostic(out.diagnostics, trace::Severity::kWarning,
                              "steps whose buckets are not those of the plan's steady step are "
                              "left out (the Reducer makes new ones after the first)");
      }
    }
    busy.push_back(timelines[i].compute);
  }
  observe_collectives(timelines, busy, timelines.size(), out);
}

}  // namespace shardlens::sim
