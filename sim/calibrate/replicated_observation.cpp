#include "sim/calibrate/replicated_observation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/resolve.h"
#include "profiler/analysis/analyzed_run.h"
#include "sim/calibrate/recorded_activations.h"
#include "sim/calibrate/recorded_tree.h"
#include "sim/calibrate/step_reader.h"

namespace shardlens::sim {
namespace {

using analysis::DdpPass;
using analysis::Interval;
using analysis::IntervalSet;
using analysis::Timeline;
using schedule::PlannedItem;
using trace::Event;

constexpr size_t kNoItem = ~size_t{0};

// Adds the Reducer's work in one microbatch: its copies in, each for the next launch; its launches;
// its copies out, each for a bucket's wait.
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
  // Buckets are waited for in order, and each bucket's gradients are copied back after its wait.
  size_t bucket = 0, left = pass.buckets.front().gradients.size();
  for (const Interval& copy : pass.copies_out) {
    while (left == 0 && bucket + 1 < waits.size()) {
      left = pass.buckets[++bucket].gradients.size();
    }
    left -= left > 0 ? 1 : 0;
    reader.add({Piece::Kind::kCopy, Piece::Gap::kWait, copy, waits[bucket]});
  }
}

// The end of the Reducer's waits. Where gradients are views, there is no copy after the wait, so
// the end of the all-reduces is used.
Nanoseconds end_of_waits(const DdpPass& pass, const Timeline& timeline, Nanoseconds limit) {
  Nanoseconds end = pass.backward.end;
  if (pass.copies_out.empty() && !timeline.device) {
    for (const analysis::Collective& each : timeline.collectives) {
      const Nanoseconds issued = each.issued.value_or(each.when.start);
      const bool own = std::any_of(pass.buckets.begin(), pass.buckets.end(), [&](const auto& b) {
        return b.when.start <= issued && issued <= b.when.end;
      });
      if (own && each.when.end <= limit) {
        end = std::max(end, each.when.end);
      }
    }
  }
  return end;
}

// When the rank's compute slowed communication: on the CPU whenever the host did not wait.
IntervalSet busy_of(const Timeline& timeline, const analysis::DdpLog& log) {
  if (timeline.device) {
    return timeline.compute;
  }
  std::vector<Interval> steps, waits;
  for (const analysis::Step& step : timeline.steps) {
    steps.push_back(step.host);
  }
  for (const DdpPass& pass : log.passes) {
    if (!pass.buckets.empty()) {
      const Interval rest{
          pass.compute_end,
          end_of_waits(pass, timeline,
                       timeline.span.empty() ? pass.backward.end : timeline.span.back().end)};
      waits.push_back(rest);
    }
  }
  const IntervalSet waited =
      analysis::intersect(analysis::union_of(std::move(waits)), timeline.communication);
  return analysis::subtract(steps.empty() ? timeline.span : analysis::union_of(std::move(steps)),
                            waited);
}

[[noreturn]] void fail_sharded(const Observation& recorded) {
  throw InputError(recorded.source,
                   "recorded under DDP, which does not shard parameters: the trace has no "
                   "durations of all-gathers and reduce-scatters, and no units of operators; "
                   "record a step of the model under fully_shard (FSDP) to simulate plans that "
                   "shard it");
}

// Whether the globs name the modules that were checkpointed when the run was recorded.
bool same_checkpoints(const plan::ResolvedPlan& program, const plan::Plan& plan) {
  plan::Plan other = program.plan;
  other.source = plan.source;
  other.activation_checkpointing = plan.activation_checkpointing;
  return plan::resolve(other, program.tree, program.world_size).checkpointed_modules ==
         program.checkpointed_modules;
}

}  // namespace

void require_replicated(const Observation& recorded, const plan::ResolvedPlan& plan) {
  const bool shards = std::any_of(plan.units.begin(), plan.units.end(), [](const plan::Unit& unit) {
    return unit.api != plan::Api::kReplicate && !unit.parameters.empty();
  });
  if (shards && recorded.plan.is_replicated()) {
    fail_sharded(recorded);
  }
}

plan::Plan on_recorded_modules(const Observation& recorded, plan::Plan plan) {
  if (recorded.config || !recorded.plan.is_replicated()) {
    return plan;
  }
  if (std::ranges::any_of(plan.units, [](const plan::UnitEntry& entry) {
        return entry.api != plan::Api::kReplicate;
      })) {
    fail_sharded(recorded);
  }
  if (plan.activation_checkpointing.empty()) {
    return plan;
  }
  if (!recorded.program || !same_checkpoints(*recorded.program, plan)) {
    throw InputError(
        plan.source + "#/activation_checkpointing",
        fmt::format("{} was recorded under DDP, whose traces do not say which operators belong to "
                    "a module, so other activation checkpoints cannot be predicted; record a step "
                    "with these checkpoints, or one of the model under fully_shard (FSDP)",
                    recorded.source));
  }
  plan.activation_checkpointing.clear();
  return plan;
}

ReplicatedReader::ReplicatedReader(const trace::Trace& trace,
                                   const Timeline& timeline,
                                   const Observation& about)
    : index_(std::make_unique<const TraceIndex>(trace, timeline)), in_(about) {
  find_positions();
}

ReplicatedReader::~ReplicatedReader() = default;

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
    if (item.kind != PlannedItem::Kind::kOperator) {
      continue;  // communication, which has no place of its own in the trace of a replicated step
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
  for (const DdpPass& each :
       in_window(log.passes, step.host, [](const DdpPass& pass) { return pass.forward.start; })) {
    if (each.backward.length() > 0) {
      out.push_back(&each);
    }
  }
  return out;
}

// Compares buckets by the names of their actions if the trace has them (Shardlens' own captures),
// otherwise by size.
bool ReplicatedReader::same_buckets(const DdpPass& pass, const Microbatch& planned) const {
  if (pass.buckets.size() != planned.launches.size() ||
      planned.waits.size() != planned.launches.size()) {
    return false;
  }
  std::vector<std::string_view> launched;
  const trace::Trace& trace = index_->trace;
  for (const uint32_t i : in_window(index_->launches, pass.backward,
                                    [&trace](uint32_t each) { return trace.events[each].start; })) {
    const UnitId unit = trace.action(trace.events[i])->action.unit;
    if (unit < trace.units.size()) {
      launched.emplace_back(trace.units[unit]);
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
  StepReader reader(*index_, in_);
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
      const Nanoseconds end = end_of_waits(pass, index_->timeline, limit);
      reader.add({Piece::Kind::kMark, Piece::Gap::kWait, {end, end}, planned.waits.back()});
    }
  }
  const DdpPass& last = *passes.back();
  reader.find({last.backward.end, step.host.end}, {last.forward_track, last.backward_track},
              optimizer_, Piece::Gap::kOutside);
  return reader.read(step);
}

void serialize_collectives(std::vector<Timeline>& timelines) {
  std::map<std::pair<uint32_t, uint32_t>, Nanoseconds> shortest;  // by the last rank and its index
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

void observe_steps(const trace::Trace& trace,
                   const Timeline& timeline,
                   const analysis::DdpLog& log,
                   Observation& out) {
  const ReplicatedReader reader(trace, timeline, out);
  for (const analysis::Step& step : timeline.steps) {
    if (auto read = reader.read(step, ReplicatedReader::passes_of(step, log))) {
      out.steps.push_back(std::move(*read));
    } else {
      trace::add_diagnostic(out.diagnostics, trace::Severity::kWarning,
                            "steps whose buckets are not those of the plan's steady step are left "
                            "out (the Reducer rebuilds its buckets after the first step)");
    }
  }
}

// The recorded part of the step that ends with the recovered pass.
analysis::Step step_of(const analysis::RecoveredPlan& recovered,
                       const std::vector<const DdpPass*>& passes) {
  const Interval whole{passes.front()->forward.start, recovered.recorded.window.end};
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

// Which parameter of the program a recorded gradient belongs to is not known, so each element of
// `tree` has an equal share of what the optimizer keeps for all of them. Its elements are those of
// fp32, whatever the program's are.
void share_states(const plan::ModuleTree& program, plan::ModuleTree& tree) {
  double bytes = 0, elements = 0;
  bool recorded = false;
  for (const plan::Parameter& each : program.parameters) {
    if (each.state_bytes) {
      bytes += *each.state_bytes * static_cast<double>(each.numel);
      recorded = true;
    }
  }
  for (const plan::Parameter& each : tree.parameters) {
    elements += static_cast<double>(each.numel);
  }
  for (plan::Parameter& each : tree.parameters) {
    if (recorded && elements > 0) {
      each.state_bytes = bytes / elements;
    }
  }
}

}  // namespace

Observation observe_replicated(const analysis::AnalyzedRun& run) {
  const trace::Run& opened = run.run();
  const analysis::RecoveredPlan& recovered = run.recovered_plan();
  Observation out;
  out.source = opened.source;
  plan::ModuleTree tree = recorded_tree(recovered);
  if (opened.program) {
    share_states(opened.program->plan.tree, tree);
  }
  out.plan = plan::resolve(recovered.plan, tree, recovered.world_size);
  out.workload = recovered.recorded.workload;
  std::vector<std::string> checkpoints;
  if (opened.program) {
    out.program = opened.program->plan;
    for (const uint32_t module : opened.program->plan.checkpointed_modules) {
      checkpoints.push_back(opened.program->plan.tree.modules[module].fqn);
    }
  }
  add_replicated_activations(recorded_activations(opened.environment), checkpoints, out.workload);
  out.settings = recorded_settings(opened.traces.front(), out.workload);
  out.settings.accumulate = recovered.accumulate;
  out.settings.sync_every_microbatch = recovered.sync_every_microbatch;
  out.planned = schedule::planned_step(out.workload, out.plan, 3, out.settings);
  std::span<const Timeline> timelines = run.matched();
  out.diagnostics = run.matching().diagnostics;
  out.host = timelines.front().device ? HostMode::kAhead : HostMode::kCompute;
  std::vector<Timeline> serialized;
  if (out.host == HostMode::kCompute) {
    serialized.assign(timelines.begin(), timelines.end());
    serialize_collectives(serialized);
    timelines = serialized;
  }
  for (size_t i = 0; i < timelines.size(); ++i) {
    observe_steps(opened.traces[i], timelines[i], run.ddp_log(i), out);
  }
  const size_t observed = out.steps.empty() ? 1 : timelines.size();
  if (out.steps.empty()) {  // the trace has no ProfilerStep ranges, or no complete step
    const analysis::DdpLog& log = run.ddp_log(0);
    const std::vector<const DdpPass*> passes = microbatches_of(recovered, log);
    const ReplicatedReader reader(opened.traces.front(), timelines.front(), out);
    if (auto step = reader.read(step_of(recovered, passes), passes)) {
      out.diagnostics.clear();
      out.steps.push_back(std::move(*step));
    }
  }
  if (out.steps.empty()) {
    throw InputError(opened.source,
                     "the buckets of its last step are not those that DDP makes from its gradients "
                     "(because of a communication hook or a list of caps), so the step cannot be "
                     "replayed; record it without them");
  }
  // A few passes are not enough to measure how compute slows an all-reduce, so no concurrent
  // compute is assumed.
  const std::vector<IntervalSet> busy(timelines.size());
  observe_collectives(timelines, busy, observed,
                      {.all_reduce = recovered.world_size, .others = recovered.world_size}, out);
  if (!checkpoints.empty()) {
    trace::add_diagnostic(out.diagnostics, trace::Severity::kNote,
                          "recorded under DDP: every prediction has the activation checkpoints of "
                          "the run");
  }
  return out;
}

bool observe_replicated_steps(const analysis::AnalyzedRun& run, Observation& out) {
  const std::span<const Timeline> timelines = run.matched();
  std::vector<IntervalSet> busy;
  bool reduces = false;
  for (size_t i = 0; i < timelines.size(); ++i) {
    const analysis::DdpLog& log = run.ddp_log(i);
    reduces = reduces || !log.passes.empty();
    observe_steps(run.run().traces[i], timelines[i], log, out);
    busy.push_back(busy_of(timelines[i], log));
  }
  observe_collectives(timelines, busy, timelines.size(), {}, out);
  return reduces;
}

}  // namespace shardlens::sim
