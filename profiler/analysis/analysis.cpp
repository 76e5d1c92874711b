#include "profiler/analysis/analysis.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "profiler/analysis/overlap/unit_work.h"
#include "profiler/trace/bytes/parallel.h"
#include "profiler/trace/filter.h"

namespace shardlens::analysis {
namespace {

using trace::Severity;
using trace::Trace;

std::string stream_name(const Trace& trace, uint32_t track, bool device) {
  const trace::Track& t = trace.tracks[track];
  if (t.name != trace::kEmptyString) {
    return std::string(trace.strings.view(t.name));
  }
  return device ? fmt::format("stream {}", t.tid) : fmt::format("thread {}", t.tid);
}

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
  return std::any_of(trace.events.begin(), trace.events.end(), [&](const trace::Event& e) {
    return e.category == trace::Category::kPythonFunction &&
           trace.name(e).starts_with("nn.Module: ");
  });
}

// Names the profiler's setting that would record what a figure lacks.
void explain_collectives(const Trace& trace,
                         const Timeline& timeline,
                         size_t ranks,
                         std::vector<trace::Diagnostic>& diagnostics) {
  int64_t no_number = 0, outside = 0;
  for (const Collective& c : timeline.collectives) {
    const bool numbered = c.args != trace::kNoIndex && trace.collectives[c.args].sequence >= 0;
    no_number += numbered ? 0 : 1;
    outside += c.unit || c.section != Section::kNone ? 0 : 1;
  }
  if (ranks > 1 && no_number > 0 && !trace.metadata.simulated()) {
    trace::add_diagnostic(diagnostics, Severity::kNote,
                          "collectives without a sequence number ('Seq') are matched across ranks "
                          "by order, size and time; newer versions of PyTorch record it for NCCL",
                          no_number);
  }
  if (outside > 0 && trace.units.empty() && !trace.metadata.simulated() &&
      !has_module_frames(trace)) {
    trace::add_diagnostic(diagnostics, Severity::kNote,
                          "collectives outside of units belong to no module: the trace has no "
                          "module frames (torch.profiler.profile with with_stack=True)",
                          outside);
  }
}

void explain(const Trace& trace,
             const Timeline& timeline,
             const RankAnalysis& rank,
             size_t ranks,
             std::vector<trace::Diagnostic>& diagnostics) {
  if (trace.events.empty()) {
    trace::add_diagnostic(diagnostics, Severity::kWarning, "the trace has no events");
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
              "bandwidths"
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
  explain_collectives(trace, timeline, ranks, diagnostics);
  if (no_kind > 0) {
    trace::add_diagnostic(diagnostics, Severity::kNote,
                          "communication of unknown kind is listed as 'unknown'", no_kind);
  }
}

RankAnalysis analyze_rank(const Trace& trace,
                          const trace::Run& run,
                          const Timeline& timeline,
                          const Dependencies& dependencies,
                          const AnalysisOptions& options,
                          std::vector<trace::Diagnostic>& diagnostics) {
  RankAnalysis rank;
  rank.rank = trace.metadata.rank.value_or(0);
  rank.device = timeline.device;
  options.timeline.check();
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
  if (!run.planned || run.planned->plan.plan.views == plan::Views::kFrozen) {
    rank.frozen_views = find_frozen_views(trace, timeline, partition, timeline.span);
  }
  const FrozenViews* frozen = rank.frozen_views ? &*rank.frozen_views : nullptr;
  const UnitWork work = unit_work(timeline);
  const UnitContext context{frozen, &work, &dependencies,
                            options.explained ? &*options.explained : nullptr};
  rank.units = unit_figures(trace, timeline, partition, timeline.span, context);
  rank.blocks = block_figures(rank.units);
  rank.groups = group_figures(trace, timeline, partition, timeline.span);
  rank.waste = find_waste(trace, timeline, partition, dependencies, frozen, timeline.span);
  rank.unit_names = timeline.units;
  rank.observed = observed_orders(trace, timeline.lists, timeline.fsdp);
  options.timeline.check();
  if (options.detail == DetailLevel::kCollectives) {
    rank.detail.emplace();
    rank.detail->spans = collective_spans(trace, timeline, partition, timeline.span, context);
  } else if (options.detail == DetailLevel::kAll) {
    rank.detail = RankDetail{unit_spans(trace, timeline, partition, timeline.span, context),
                             intersect(timeline.compute, timeline.span),
                             intersect(timeline.communication, timeline.span),
                             intersect(timeline.copy, timeline.span)};
  }
  for (uint32_t track = 0; track < timeline.busy.size(); ++track) {
    if (!timeline.busy[track].empty()) {
      rank.streams.push_back({stream_name(trace, track, timeline.device),
                              length_of(intersect(timeline.busy[track], timeline.span))});
    }
  }
  const trace::PlannedInputs* planned = run.planned ? &*run.planned : nullptr;
  rank.order = check_order(step_orders(trace, timeline, planned, diagnostics));
  explain(trace, timeline, rank, run.traces.size(), diagnostics);
  return rank;
}

void find_critical_paths(const trace::Run& run,
                         const std::vector<Timeline>& timelines,
                         const std::vector<std::optional<Dependencies>>& dependencies,
                         Analysis& out) {
  std::vector<PathRank> ranks;
  for (size_t i = 0; i < run.traces.size(); ++i) {
    ranks.push_back({run.traces[i], timelines[i], *dependencies[i],
                     out.matching.clocks.empty() ? 0 : out.matching.clocks[i].offset});
  }
  const PathFinder finder(std::move(ranks));
  for (uint32_t i = 0; i < run.traces.size(); ++i) {
    for (CriticalPath& path : finder.of(i)) {
      std::vector<PathPart> parts = finder.parts(path);
      out.ranks[i].critical_paths.push_back({std::move(path), std::move(parts)});
    }
  }
}

}  // namespace

Analysis analyze(const trace::Run& run, const AnalysisOptions& options) {
  Analysis out;
  out.diagnostics = run.diagnostics;
  const size_t ranks = run.traces.size();
  std::vector<Timeline> timelines(ranks);
  trace::in_parallel(
      ranks, [&](size_t i) { timelines[i] = make_timeline(run.traces[i], options.timeline); });
  out.matching = match_ranks(run.traces, timelines, out.diagnostics);
  bool any_step = false;
  if (options.steps) {
    std::set<int64_t> there;
    for (Timeline& timeline : timelines) {
      for (const Step& step : timeline.steps) {
        there.insert(step.number);
      }
      choose_steps(timeline, *options.steps);
      any_step = any_step || !timeline.steps.empty();
    }
    if (!any_step) {
      throw InputError(run.source,
                       trace::no_step({options.steps->first, options.steps->last}, there));
    }
  }
  out.ranks.resize(ranks);
  std::vector<std::optional<Dependencies>> dependencies(ranks);
  std::vector<std::vector<trace::Diagnostic>> diagnostics(ranks);
  trace::in_parallel(ranks, [&](size_t i) {
    dependencies[i].emplace(run.traces[i], timelines[i]);
    out.ranks[i] =
        analyze_rank(run.traces[i], run, timelines[i], *dependencies[i], options, diagnostics[i]);
    if (!options.critical_path) {
      dependencies[i].reset();
    }
  });
  if (options.critical_path) {
    find_critical_paths(run, timelines, dependencies, out);
  }
  for (size_t i = 0; i < ranks; ++i) {
    for (const std::vector<trace::Diagnostic>* list :
         {&run.traces[i].diagnostics, &std::as_const(timelines[i].diagnostics),
          &std::as_const(diagnostics[i])}) {
      for (const trace::Diagnostic& d : *list) {
        trace::add_diagnostic(out.diagnostics, d.severity, d.message, d.count);
      }
    }
  }
  if (options.keep_timelines) {
    out.timelines = std::move(timelines);
  }
  return out;
}

}  // namespace shardlens::analysis
