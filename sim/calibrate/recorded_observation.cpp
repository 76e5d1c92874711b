#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/resolve.h"
#include "core/schedule/planned/awaited_communications.h"
#include "profiler/analysis/analyzed_run.h"
#include "profiler/analysis/fsdp_log/joined_forwards.h"
#include "profiler/analysis/recover/program_units.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "sim/calibrate/launched_kernels.h"
#include "sim/calibrate/observation.h"
#include "sim/calibrate/program_reader.h"
#include "sim/calibrate/recorded_activations.h"
#include "sim/calibrate/recorded_communication.h"
#include "sim/calibrate/recorded_tree.h"
#include "sim/calibrate/replicated_observation.h"
#include "sim/engine/rank_costs.h"

namespace shardlens::sim {
namespace {

using analysis::Interval;
using analysis::IntervalSet;
using analysis::Timeline;

constexpr int kSteady = 3;  // from this step on, all steps are planned alike

// Goes through the recorded pass and assigns the host's time to its hooks and operators.
class PassReader {
 public:
  PassReader(const trace::Trace& trace,
             const Timeline& timeline,
             const analysis::RecoveredWorkload& recorded,
             const std::vector<RecordedCommunication>& communications)
      : timeline_(timeline),
        recorded_(recorded),
        communications_(communications),
        kernels_(trace, timeline),
        limiter_waits_(analysis::union_of(timeline.fsdp.limiter_waits)) {
    std::vector<Interval> busy;
    for (const analysis::DeviceEvent& each : timeline.host_events) {
      busy.push_back({trace.events[each.event].start, trace.events[each.event].end()});
    }
    idle_communication_ =
        analysis::subtract(timeline.communication, analysis::union_of(std::move(busy)));
  }

  // `planned`: as_recorded() of the pass.
  ObservedStep read(const schedule::PlannedStep& planned) {
    ObservedStep out;
    out.items.resize(planned.order.size());
    std::vector<size_t> position(communications_.size());  // of each communication
    const Interval step = window();
    out.duration = step.length();
    at_ = recorded_.window.start;
    outside_ = std::max<Nanoseconds>(0, at_ - step.start);
    using Kind = schedule::PlannedItem::Kind;
    size_t next = 0;  // in the recorded order, which has no waits
    for (size_t i = 0; i < planned.order.size(); ++i) {
      const schedule::PlannedItem& item = planned.order[i];
      ObservedItem& seen = out.items[i];
      const Interval when =
          item.kind == Kind::kWait ? communications_[item.index].waited : recorded_.times[next++];
      if (item.kind == Kind::kWait && when.length() == 0) {
        continue;
      }
      gap_ += std::max<Nanoseconds>(0, when.start - at_);
      const Interval own{std::max(at_, when.start), std::max(at_, when.end)};
      if (item.kind == Kind::kHook) {
        seen.waited = waited(own);
        seen.host = own.length() - seen.waited;
      } else if (item.kind == Kind::kOperator) {
        read_operator(recorded_.workload.operators[item.index], when, seen);
      } else {
        if (item.kind == Kind::kCommunication) {
          position[item.index] = i;
        }
        const RecordedCommunication& each = communications_[item.index];
        const Nanoseconds ran = runs_within(each, own);
        ObservedItem& communication = out.items[position[item.index]];
        seen.waited += ran;
        if (item.kind == Kind::kWait) {
          const bool began = timeline_.device || each.when.start <= own.start;
          (began ? seen : communication).host += std::exchange(gap_, 0);
        }
        communication.host += own.length() - ran;
      }
      at_ = own.end;
    }
    outside_ += gap_ + std::max<Nanoseconds>(0, step.end - at_);
    out.outside = outside_;
    return out;
  }

 private:
  // The step that contains the pass, or the pass itself.
  [[nodiscard]] Interval window() const {
    for (const analysis::Step& step : timeline_.steps) {
      if (step.host.start <= recorded_.window.start && recorded_.window.start < step.host.end) {
        return timeline_.device ? step.window : step.host;
      }
    }
    return recorded_.window;
  }

  // On the CPU a hook waits while a collective runs and no operator does. On a device the host
  // waits only for the rate limiter.
  [[nodiscard]] Nanoseconds waited(const Interval& when) const {
    if (!timeline_.device) {
      return analysis::length_within(idle_communication_, when);
    }
    return analysis::length_within(limiter_waits_, when);
  }

  // See [Note: Whose waiting].
  [[nodiscard]] Nanoseconds runs_within(const RecordedCommunication& each,
                                        const Interval& when) const {
    return timeline_.device ? 0
                            : std::max<Nanoseconds>(0, std::min(each.when.end, when.end) -
                                                           std::max(each.when.start, when.start));
  }

  void read_operator(const plan::Operator& op, const Interval& when, ObservedItem& seen) {
    if (op.phase == plan::Phase::kOptimizer) {
      outside_ += std::exchange(gap_, 0);
    }
    seen.host = std::exchange(gap_, 0);
    if (timeline_.device) {
      const LaunchedKernels::Sum found = kernels_.within(when, analysis::Nature::kCompute);
      seen.host += when.length();
      seen.run = found.count > 0 ? found.duration : -1;
      seen.beside = found.beside;
      return;
    }
    seen.run = when.length();
    seen.beside =
        when.length() == 0
            ? 0
            : static_cast<double>(analysis::length_within(timeline_.communication, when)) /
                  static_cast<double>(when.length());
  }

  const Timeline& timeline_;
  const analysis::RecoveredWorkload& recorded_;
  const std::vector<RecordedCommunication>& communications_;  // by index in the workload
  LaunchedKernels kernels_;
  IntervalSet limiter_waits_;
  IntervalSet idle_communication_;  // communication while no operator of the host runs
  Nanoseconds at_ = 0, gap_ = 0, outside_ = 0;
};

// Changes the workload's unit numbers from the order of forward to the index in the plan.
void number_units(const analysis::RecoveredPlan& recovered, Observation& out) {
  std::vector<UnitId> unit_of;
  for (const analysis::RecoveredUnit& unit : recovered.units) {
    const auto found = std::find_if(out.plan.units.begin(), out.plan.units.end(),
                                    [&](const plan::Unit& each) { return each.fqn == unit.fqn; });
    SHARDLENS_CHECK(found != out.plan.units.end(), "a recovered unit is not in its own plan");
    unit_of.push_back(static_cast<UnitId>(found - out.plan.units.begin()));
  }
  for (plan::Operator& op : out.workload.operators) {
    op.unit = unit_of.at(op.unit);
  }
  for (HookEvent& hook : out.workload.hooks) {
    hook.unit = unit_of.at(hook.unit);
  }
}

schedule::PlannedStep as_recorded(const plan::Workload& workload) {
  using Kind = schedule::PlannedItem::Kind;
  schedule::PlannedStep out;
  out.hooks = workload.hooks;
  schedule::AwaitedCommunications awaited(workload);
  for (const plan::WorkloadItem& item : workload.order) {
    awaited.wait_before(item, out.order);
    switch (item.kind) {
      case plan::WorkloadItem::Kind::kHook:
        out.order.push_back({Kind::kHook, item.index});
        break;
      case plan::WorkloadItem::Kind::kOperator:
        out.order.push_back({Kind::kOperator, item.index});
        break;
      case plan::WorkloadItem::Kind::kCommunication:
        awaited.begin(item.index, out.order);
        break;
    }
  }
  awaited.wait_for_all(out.order);
  return out;
}

// A run of PyTorch's FSDP, and what its traces call the units of the plan.
struct ProgramRun {
  const analysis::AnalyzedRun& run;
  analysis::RecoveredWorkload recorded;  // the pass that the workload is from
  std::vector<UnitNames> names;          // by rank
  GroupSizes unnamed;
  bool guesses_microbatches = false;    // the settings do not say how a step accumulates
  std::vector<Timeline> of_units = {};  // by rank; of a program that gathers its parameters itself

  [[nodiscard]] std::span<const Timeline> timelines() const {
    return of_units.empty() ? run.matched() : std::span<const Timeline>(of_units);
  }
};

// Each rank's own pass, if all ranks of the run were recorded, their plan is known, and an
// all-to-all gave them different numbers of rows; otherwise none.
std::vector<RankProgram> programs_of_ranks(const ProgramRun& program,
                                           std::span<const Timeline> timelines,
                                           const Observation& out) {
  const trace::Run& run = program.run.run();
  const bool exchanges = std::ranges::any_of(
      out.workload.communications,
      [](const plan::Communication& each) { return each.kind == CollectiveKind::kAllToAll; });
  if (!exchanges || !run.planned || static_cast<int64_t>(timelines.size()) != out.plan.world_size) {
    return {};
  }
  std::vector<RankProgram> made;
  bool alike = true;
  for (size_t rank = 0; rank < timelines.size(); ++rank) {
    const trace::Trace& trace = run.traces[rank];
    std::vector<trace::Diagnostic> ignored;  // those of the first rank are reported
    analysis::RecoveredWorkload pass =
        analysis::recorded_pass(trace, timelines[rank], out.plan, ignored);
    Observation own;
    own.plan = out.plan;
    own.host = out.host;
    own.workload = pass.workload;
    add_activations(recorded_activations(run.environment), own.plan, own.workload);
    const std::vector<RecordedCommunication> added = add_communications(
        recorded_communications(trace, timelines[rank], program.names[rank]), pass, own);
    if (!same_order(own.workload, out.workload)) {
      return {};
    }
    alike = alike && own.workload.operators == out.workload.operators;
    RankProgram& of_rank = made.emplace_back();
    of_rank.workload = std::move(own.workload);
    for (const RecordedCommunication& each : added) {
      of_rank.exchanged.push_back(each.exchanged);
    }
  }
  return alike ? std::vector<RankProgram>() : std::move(made);
}

int64_t microbatches_in(const Timeline& timeline) {
  std::vector<Interval> steps;
  for (const analysis::Step& step : timeline.steps) {
    steps.push_back(step.host);
  }
  return analysis::microbatches_of(analysis::training_passes(timeline.fsdp), steps);
}

// The steps of all ranks that are like the planned step.
void observe_steps(const ProgramRun& program,
                   std::span<const Timeline> timelines,
                   Observation& out) {
  out.planned = schedule::planned_step(out.workload, out.plan, kSteady, out.settings);
  for (RankProgram& each : out.of_ranks) {
    each.planned = schedule::planned_step(each.workload, out.plan, kSteady, out.settings);
  }
  std::map<std::string, int64_t> left_out;
  for (size_t rank = 0; rank < timelines.size(); ++rank) {
    std::optional<Observation> own;  // of the rank, if its operators are not those of all
    if (!out.of_ranks.empty()) {
      own.emplace();
      own->plan = out.plan;
      own->workload = out.of_ranks[rank].workload;
      own->planned = out.of_ranks[rank].planned;
      own->settings = out.settings;
      own->host = out.host;
      own->blocking = out.blocking;
    }
    const ProgramReader reader(program.run.run().traces[rank], timelines[rank], own ? *own : out,
                               program.names[rank]);
    const GraphLaunches graphs(program.run.run().traces[rank], timelines[rank]);
    for (const analysis::Step& step : timelines[rank].steps) {
      const bool launches = graphs.any_in(step);
      const std::string reason = reader.difference(step);
      if (launches && reason != ProgramReader::kNoBackward) {
        ++left_out["a CUDA graph was captured in them"];
        continue;
      }
      if (!reason.empty()) {
        left_out[reason] += launches ? 0 : 1;  // a replay is no step that is left out
        continue;
      }
      ObservedStep& seen = out.steps.emplace_back(reader.read(step));
      seen.rank = rank;
    }
  }
  out.left_out.clear();
  for (const auto& [reason, steps] : left_out) {
    if (steps > 0) {
      out.left_out.push_back({steps, reason});
    }
  }
  std::ranges::stable_sort(out.left_out, std::greater(), &StepsLeftOut::steps);
  for (const StepsLeftOut& each : out.left_out) {
    if (!out.steps.empty()) {
      trace::add_diagnostic(out.diagnostics, trace::Severity::kWarning,
                            "steps left out: " + each.reason, each.steps);
    }
  }
}

// Every step that is like the planned one. If none is, the recorded pass by itself, in the order in
// which it ran.
void observe_program(ProgramRun program, Observation& out) {
  const std::vector<trace::Trace>& traces = program.run.run().traces;
  const std::span<const Timeline> timelines = program.timelines();
  for (const trace::Diagnostic& each : program.run.matching().diagnostics) {
    trace::add_diagnostic(out.diagnostics, each.severity, each.message, each.count);
  }
  out.host = timelines.front().device ? HostMode::kAhead : HostMode::kCompute;
  out.blocking = blocking_kinds(traces, timelines);
  const std::vector<RecordedCommunication> communications = add_communications(
      recorded_communications(traces.front(), timelines.front(), program.names.front()),
      program.recorded, out);
  out.of_ranks = programs_of_ranks(program, timelines, out);
  const plan::StepSettings settings = out.settings;
  if (program.guesses_microbatches) {
    out.settings.accumulate = microbatches_in(timelines.front());
  }
  observe_steps(program, timelines, out);
  if (out.steps.empty() && program.guesses_microbatches && out.settings.accumulate > 1) {
    out.settings.sync_every_microbatch = false;
    observe_steps(program, timelines, out);
  }
  size_t observed = timelines.size();
  if (out.steps.empty()) {
    trace::add_diagnostic(out.diagnostics, trace::Severity::kWarning,
                          "no step of the traces has the collectives of its plan: one pass is "
                          "taken as it ran");
    out.one_pass = true;
    out.of_ranks.clear();
    for (const Timeline& timeline : timelines) {
      for (const analysis::Step& step : timeline.steps) {
        out.durations.push_back(timeline.device ? step.window.length() : step.host.length());
      }
    }
    out.settings = settings;
    out.settings.accumulate = 1;
    out.planned = as_recorded(out.workload);
    out.steps.push_back(
        PassReader(traces.front(), timelines.front(), program.recorded, communications)
            .read(out.planned));
    observed = 1;
  }
  out.captured = captured_steps(traces, timelines);
  out.settings.software.cuda_graphs = out.captured.has_value();
  for (ObservedStep& step : out.steps) {
    step.outside = out.captured ? out.captured->idle : step.outside;
  }
  std::vector<IntervalSet> busy;
  for (const Timeline& timeline : timelines) {
    busy.push_back(timeline.compute);
  }
  observe_collectives(timelines, busy, observed, program.unnamed, out);
}

}  // namespace

plan::StepSettings recorded_settings(const trace::Trace& trace, const plan::Workload& workload) {
  plan::StepSettings out;
  out.batch = std::max<int64_t>(1, workload.batch);
  out.seq = workload.seq > 0 ? std::optional(workload.seq) : std::nullopt;
  const bool sgd = std::ranges::any_of(trace.events, [&trace](const trace::Event& event) {
    return trace.name(event).starts_with("Optimizer.step#SGD");
  });
  out.optimizer = sgd ? plan::Optimizer::kSgd : plan::Optimizer::kAdamW;
  return out;
}

void require_shapes(const trace::Run& run, const analysis::RecoveredWorkload& recorded) {
  const auto operators = static_cast<int64_t>(recorded.workload.operators.size());
  if (recorded.unshaped > operators / 2) {
    throw InputError(
        run.source, fmt::format("{} of the step's {} operators have no shapes in the trace; record "
                                "it with torch.profiler.profile(record_shapes=True)",
                                recorded.unshaped, operators));
  }
}

Observation observe_recovered(const analysis::AnalyzedRun& run) {
  const trace::Run& opened = run.run();
  const analysis::RecoveredPlan& recovered = run.recovered_plan();
  require_shapes(opened, recovered.recorded);
  if (recovered.replicated()) {
    return observe_replicated(run);
  }
  Observation out;
  out.source = opened.source;
  out.pytorch = true;
  out.plan = plan::resolve(recovered.plan, recorded_tree(recovered), recovered.world_size);
  out.workload = recovered.recorded.workload;
  number_units(recovered, out);
  out.settings = recorded_settings(opened.traces.front(), out.workload);
  UnitNames names;
  for (UnitId unit = 0; unit < out.plan.units.size(); ++unit) {
    names.emplace(out.plan.units[unit].fqn, unit);
  }
  const int64_t replicas = out.plan.replicas();
  ProgramRun program{run,
                     recovered.recorded,
                     {},
                     {replicas > 1 ? replicas : out.plan.shards(), out.plan.shards()}};
  program.names.assign(opened.traces.size(), names);
  program.guesses_microbatches = true;
  out.rewritten = recovered.source == analysis::FsdpSource::kProgram;
  if (out.rewritten) {
    for (const trace::Diagnostic& each : recovered.diagnostics) {
      trace::add_diagnostic(out.diagnostics, each.severity, each.message, each.count);
    }
    const std::span<const Timeline> matched = run.matched();
    for (size_t rank = 0; rank < matched.size(); ++rank) {
      program.of_units.push_back(analysis::with_program_units(opened.traces[rank], matched[rank]));
    }
  }
  observe_program(std::move(program), out);
  return out;
}

Observation observe_recorded(const analysis::AnalyzedRun& run) {
  const trace::Run& opened = run.run();
  const trace::PlannedInputs& planned = *opened.planned;
  Observation out;
  out.source = opened.source;
  out.pytorch = true;
  out.plan = planned.plan;
  out.settings = planned.settings;
  const analysis::RecoveredWorkload& recorded = run.recorded_pass().recovered;
  out.diagnostics = run.recorded_pass().diagnostics;
  require_shapes(opened, recorded);
  out.workload = recorded.workload;
  add_activations(recorded_activations(opened.environment), out.plan, out.workload);
  ProgramRun program{run, recorded, {}, {out.plan.replicas(), out.plan.shards()}};
  for (size_t rank = 0; rank < opened.traces.size(); ++rank) {
    analysis::FsdpLog log = run.timeline(rank).fsdp;
    const std::vector<uint32_t> units = analysis::log_units_of(opened.traces[rank], out.plan, log);
    UnitNames& names = program.names.emplace_back();
    for (UnitId unit = 0; unit < units.size(); ++unit) {
      names.emplace(log.units[units[unit]].fqn, unit);
    }
  }
  observe_program(std::move(program), out);
  return out;
}

}  // namespace shardlens::sim
