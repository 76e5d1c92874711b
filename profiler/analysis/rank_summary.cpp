#include "profiler/analysis/rank_summary.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "profiler/analysis/timeline/device_choice.h"
#include "profiler/analysis/units/unit_work.h"
#include "profiler/trace/filter.h"
#include "profiler/trace/rank_numbers.h"

namespace shardlens::analysis {
namespace {

using trace::Severity;
using trace::Trace;

void choose_steps(Timeline& timeline, const StepRange& range) {
  std::erase_if(timeline.steps,
                [&](const Step& s) { return s.number < range.first || s.number >= range.last; });
  std::vector<Interval> windows;
  for (const Step& step : timeline.steps) {
    windows.push_back(step.window);
  }
  timeline.span = union_of(std::move(windows));
}

bool has_module_frames(const Trace& trace) {
  constexpr std::string_view kFrame = "nn.Module: ";
  bool named = false;  // there are far fewer names than events
  for (trace::StringId id = 0; id < trace.strings.size() && !named; ++id) {
    named = trace.strings.view(id).starts_with(kFrame);
  }
  return named && std::any_of(trace.events.begin(), trace.events.end(), [&](const auto& e) {
           return e.category == trace::Category::kPythonFunction &&
                  trace.name(e).starts_with(kFrame);
         });
}

int64_t count_unnumbered(const Trace& trace, const Timeline& timeline) {
  return trace.metadata.simulated()
             ? 0
             : std::count_if(timeline.collectives.begin(), timeline.collectives.end(),
                             [&](const Collective& c) {
                               return c.args == trace::kNoIndex ||
                                      trace.collectives[c.args].sequence < 0;
                             });
}

// Names the profiler's setting that would record what a figure lacks.
void explain_collectives(const Trace& trace,
                         const Timeline& timeline,
                         std::vector<trace::Diagnostic>& diagnostics) {
  const int64_t outside =
      std::count_if(timeline.collectives.begin(), timeline.collectives.end(),
                    [](const Collective& c) { return !c.unit && c.section == Section::kNone; });
  if (outside > 0 && trace.units.empty() && !trace.metadata.simulated() &&
      !has_module_frames(trace)) {
    trace::add_diagnostic(diagnostics, Severity::kNote,
                          "collectives outside of units belong to no module: the trace has no "
                          "module frames (torch.profiler.profile with with_stack=True)",
                          outside);
  }
  const int64_t no_group =
      std::count_if(timeline.collectives.begin(), timeline.collectives.end(), [&](const auto& c) {
        const bool named =
            c.args != trace::kNoIndex && trace.collectives[c.args].group != trace::kEmptyString;
        return !named && c.listed_group == trace::kNoIndex;
      });
  if (no_group > 0 && trace.metadata.groups.size() > 1 && !trace.metadata.simulated()) {
    trace::add_diagnostic(diagnostics, Severity::kNote,
                          "the run has several process groups, but these collectives do not name "
                          "theirs, and more than one fits, so they are compared with none "
                          "(PyTorch records it for NCCL, not for Gloo)",
                          no_group);
  }
}

// The message for a trace none of whose events has a category that the analysis reads.
std::optional<std::string> unknown_categories(const Trace& trace) {
  std::set<std::string> found;
  for (const trace::Event& event : trace.events) {
    if (event.category != trace::Category::kOther) {
      return std::nullopt;
    }
    const std::string_view category = trace.category(event);
    found.insert(category.empty() ? "(none)" : fmt::format("'{}'", category));
  }
  constexpr size_t kShown = 5;
  const bool more = found.size() > kShown;
  found.erase(std::next(found.begin(), static_cast<std::ptrdiff_t>(std::min(found.size(), kShown))),
              found.end());
  return fmt::format(
      "no event has a category of PyTorch's profiler (kernel, cpu_op, user_annotation, …), so "
      "there "
      "is nothing to analyze; categories in the trace: {}{}",
      fmt::join(found, ", "), more ? ", …" : "");
}

void explain(const Trace& trace,
             const Timeline& timeline,
             const RankAnalysis& rank,
             std::vector<trace::Diagnostic>& diagnostics) {
  if (trace.events.empty()) {
    trace::add_diagnostic(diagnostics, Severity::kWarning, "the trace has no events");
    return;
  }
  if (std::optional<std::string> unknown = unknown_categories(trace)) {
    trace::add_diagnostic(diagnostics, Severity::kWarning, std::move(*unknown));
    return;
  }
  if (!timeline.missing_kernels.empty()) {
    trace::add_diagnostic(
        diagnostics, Severity::kWarning,
        fmt::format("the trace has no kernels, although {}: when the device computed and "
                    "communicated is not known, so there are no figures of overlap; record "
                    "with activities=[ProfilerActivity.CPU, ProfilerActivity.{}]",
                    timeline.missing_kernels, activity_of_kernels(trace)));
    return;
  }
  if (rank.figures.comm == 0) {
    trace::add_diagnostic(
        diagnostics, Severity::kNote,
        timeline.communication.empty()
            ? "no communication in the trace: overlap_ratio is null (--comm-regex can select "
              "communication events by name)"
            : "no communication within the analysed steps: overlap_ratio is null");
  }
  if (rank.figures.compute == 0) {
    trace::add_diagnostic(diagnostics, Severity::kWarning,
                          rank.figures.comm == 0
                              ? "no compute in the trace"
                              : "no compute in the trace: all communication counts as exposed");
  }
  int64_t no_bytes = 0, no_kind = 0;
  for (const Collective& c : timeline.collectives) {
    no_bytes += c.bytes == 0 ? 1 : 0;
    no_kind += c.kind ? 0 : 1;
  }
  if (no_bytes > 0) {
    trace::add_diagnostic(
        diagnostics, Severity::kNote,
        timeline.device
            ? "collectives whose message size is not in the trace are left out of bytes and "
              "bandwidths (newer versions of PyTorch record it for NCCL)"
            : "collectives whose message size is not in the trace are left out of bytes and "
              "bandwidths (torch.profiler.profile with record_shapes=True)",
        no_bytes);
  }
  if (timeline.device && trace.syncs.empty() && trace.units.empty() && rank.figures.idle > 0 &&
      !trace.metadata.simulated()) {
    trace::add_diagnostic(
        diagnostics, Severity::kNote,
        "no cuda_sync rows: what a stream waited for is inferred (torch.profiler.profile with "
        "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True) records them)");
  }
  explain_collectives(trace, timeline, diagnostics);
  if (no_kind > 0) {
    trace::add_diagnostic(diagnostics, Severity::kNote,
                          "communication of unknown kind is listed as 'unknown'", no_kind);
  }
}

// The part that is the same whichever steps are chosen. `timeline`: with all of them.
RankSummary summary_of_trace(const Trace& trace,
                             const Timeline& timeline,
                             int64_t position,
                             const AnalysisOptions& options) {
  options.timeline.check();
  RankSummary out;
  out.source = trace.metadata.source;
  if (!trace::is_unranked(trace)) {
    out.rank = trace.metadata.rank;
  }
  out.collectives = rank_collectives(trace, timeline, position);
  out.unnumbered = count_unnumbered(trace, timeline);
  out.chosen = options.steps;
  for (const Step& step : timeline.steps) {
    out.recorded_steps.push_back(step.number);
  }
  return out;
}

// Adds the figures of the timeline's steps.
void add_figures(const Trace& trace,
                 const Timeline& timeline,
                 const Dependencies& dependencies,
                 const trace::PlannedInputs* planned,
                 const AnalysisOptions& options,
                 RankSummary& out) {
  RankAnalysis& rank = out.analysis;
  std::vector<trace::Diagnostic> of_rank;
  rank.rank = trace.metadata.rank.value_or(0);
  rank.device = timeline.device;
  rank.window = timeline.span;
  const Partition partition(timeline);
  const IdleCauses idle(trace, timeline, dependencies);
  options.timeline.check();
  rank.figures = partition.figures(timeline.span);
  rank.idle = idle.within(timeline.span, rank.figures.idle);
  rank.launch = launch_figures(trace, timeline, timeline.span);
  rank.memory = memory_figures(trace, timeline);
  for (const Step& step : timeline.steps) {
    const IntervalSet window = union_of({step.window});
    StepAnalysis& figures = rank.steps.emplace_back();
    figures.step = step.number;
    figures.window = step.window;
    figures.figures = partition.figures(window);
    figures.idle = idle.within(window, figures.figures.idle);
  }
  options.timeline.check();
  if (planned == nullptr || planned->plan.plan.views == plan::Views::kFrozen) {
    rank.frozen_views = find_frozen_views(trace, timeline, partition, timeline.span);
  }
  const FrozenViews* frozen = rank.frozen_views ? &*rank.frozen_views : nullptr;
  const UnitWork work = unit_work(timeline, partition, timeline.span);
  const UnitContext context{frozen, &work, &dependencies,
                            options.explained ? &*options.explained : nullptr, true};
  UnitGathering gathered = gather_units(trace, timeline, partition, timeline.span, context);
  rank.units = std::move(gathered.units);
  out.exposures = std::move(gathered.exposures);
  rank.blocks = block_figures(rank.units);
  const WindowGroups groups = window_groups(trace, timeline, partition, timeline.span);
  rank.groups = group_figures(groups, timeline, partition, timeline.span);
  rank.communication = communication_figures(groups, timeline, partition, timeline.span);
  rank.attribution = attribution_figures(timeline, timeline.span);
  rank.waste = find_waste(trace, timeline, partition, dependencies, frozen, timeline.span);
  rank.unit_names = timeline.units;
  rank.observed = observed_orders(trace, timeline.lists, timeline.fsdp);
  options.timeline.check();
  if (options.detail == DetailLevel::kCollectives) {
    rank.detail.emplace();
    rank.detail->spans = collective_spans(trace, timeline, partition, timeline.span, context);
    if (timeline.device) {
      rank.detail->idle = idle.parts(partition.idle(timeline.span));
    }
  } else if (options.detail == DetailLevel::kAll) {
    rank.detail = RankDetail{unit_spans(trace, timeline, partition, timeline.span, context),
                             intersect(timeline.compute, timeline.span),
                             intersect(timeline.communication, timeline.span),
                             intersect(timeline.copy, timeline.span)};
    rank.detail->regions = regions_of(trace, timeline);
  }
  rank.streams = stream_figures(trace, timeline, timeline.span);
  out.orders = step_orders(trace, timeline, planned, of_rank);
  explain(trace, timeline, rank, of_rank);
  for (const auto* list :
       {&trace.diagnostics, &std::as_const(timeline.diagnostics), &std::as_const(of_rank)}) {
    for (const trace::Diagnostic& d : *list) {
      trace::add_diagnostic(out.diagnostics, d.severity, d.message, d.count);
    }
  }
}

}  // namespace

RankSummary summarize(const Trace& trace,
                      Timeline& timeline,
                      const Dependencies& dependencies,
                      const trace::PlannedInputs* planned,
                      int64_t position,
                      const AnalysisOptions& options) {
  RankSummary out = summary_of_trace(trace, timeline, position, options);
  if (options.steps) {
    choose_steps(timeline, *options.steps);
  }
  add_figures(trace, timeline, dependencies, planned, options, out);
  return out;
}

RankSummary summarize_all_steps(const Trace& trace,
                                const Timeline& timeline,
                                const Dependencies& dependencies,
                                const trace::PlannedInputs* planned,
                                int64_t position,
                                const AnalysisOptions& options) {
  SHARDLENS_CHECK(!options.steps, "steps are chosen in a timeline of one's own");
  RankSummary out = summary_of_trace(trace, timeline, position, options);
  add_figures(trace, timeline, dependencies, planned, options, out);
  return out;
}

RankSummary summarize(const trace::Run& run, const AnalysisOptions& options) {
  if (run.traces.size() != 1) {
    throw UsageError(fmt::format("a summary is made of one trace, found {}", run.traces.size()));
  }
  const Trace& trace = run.traces.front();
  AnalysisOptions of_file = options;
  of_file.detail = DetailLevel::kAll;
  TimelineOptions timeline_options = options.timeline;
  timeline_options.planned = plan_of(run);
  Timeline timeline = make_timeline(trace, timeline_options);
  const Dependencies dependencies(trace, timeline);
  RankSummary out =
      summarize(trace, timeline, dependencies, run.planned ? &*run.planned : nullptr, 0, of_file);
  out.run_diagnostics = run.diagnostics;
  return out;
}

void RankMerge::add(RankSummary& rank) {
  for (const trace::Diagnostic& d : rank.run_diagnostics) {
    if (std::find(out_.diagnostics.begin(), out_.diagnostics.end(), d) == out_.diagnostics.end()) {
      out_.diagnostics.push_back(d);
    }
  }
  chosen_ = rank.chosen;
  has_steps_ = has_steps_ || !rank.chosen || !rank.analysis.steps.empty();
  recorded_steps_.insert(rank.recorded_steps.begin(), rank.recorded_steps.end());
  unnumbered_ += rank.unnumbered;
  collectives_.push_back(std::move(rank.collectives));
}

void RankMerge::match(const std::string& source) {
  if (chosen_ && !has_steps_) {
    throw InputError(source, trace::no_step({chosen_->first, chosen_->last}, recorded_steps_));
  }
  out_.matching = match_ranks(collectives_);
  for (const trace::Diagnostic& each : out_.matching.diagnostics) {
    trace::add_diagnostic(out_.diagnostics, each.severity, each.message, each.count);
  }
  if (unnumbered_ > 0 && collectives_.size() > 1) {
    trace::add_diagnostic(out_.diagnostics, Severity::kNote,
                          "collectives without a sequence number ('Seq') are matched across ranks "
                          "by order, size and time; newer versions of PyTorch record it for NCCL",
                          unnumbered_);
  }
}

// The planned order is that of the first rank: from the third step on, all steps have the same one.
void RankMerge::share_planned_orders(size_t position, std::vector<StepOrder>& orders) {
  for (StepOrder& order : orders) {
    const int64_t kind = std::clamp<int64_t>(order.step, 0, 2);
    if (const auto known = planned_.find(kind); known != planned_.end()) {
      if (position > 0) {
        order.planned = known->second;
      }
    } else if (!order.planned.empty()) {
      planned_.emplace(kind, order.planned);
    }
  }
}

RankAnalysis RankMerge::settle(size_t position, RankSummary& rank) {
  share_planned_orders(position, rank.orders);
  RankAnalysis& out = rank.analysis;
  const RankCollectives& collectives = collectives_[position];
  set_transfers(collectives.rows, out.window, out.figures);
  for (StepAnalysis& step : out.steps) {
    set_transfers(collectives.rows, union_of({step.window}), step.figures);
  }
  const SettledCauses causes(collectives);
  settle_causes(rank.exposures, causes, out.units);
  if (out.detail) {
    settle_causes(rank.exposures, causes, out.detail->spans);
  }
  out.order = check_order(rank.orders);
  for (const trace::Diagnostic& d : rank.diagnostics) {
    trace::add_diagnostic(out_.diagnostics, d.severity, d.message, d.count);
  }
  return std::move(out);
}

Analysis merge(std::vector<RankSummary>& ranks, const std::string& source) {
  RankMerge merge;
  for (RankSummary& rank : ranks) {
    merge.add(rank);
  }
  merge.match(source);
  std::vector<RankAnalysis> settled;
  for (size_t i = 0; i < ranks.size(); ++i) {
    settled.push_back(merge.settle(i, ranks[i]));
    ranks[i].collectives = merge.take_collectives(i);
  }
  Analysis out = merge.take();
  out.ranks = std::move(settled);
  return out;
}

}  // namespace shardlens::analysis
