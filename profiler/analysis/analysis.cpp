#include "profiler/analysis/analysis.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"

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

void explain(const Timeline& timeline,
             const RankAnalysis& rank,
             std::vector<trace::Diagnostic>& diagnostics) {
  if (rank.figures.comm == 0) {
    trace::add_diagnostic(
        diagnostics, Severity::kNote,
        timeline.communication.empty()
            ? "no communication in the trace: overlap_ratio is null (--comm-regex names what "
              "communicates)"
            : "no communication within the analysed steps: overlap_ratio is null");
  }
  if (rank.figures.compute == 0) {
    trace::add_diagnostic(diagnostics, Severity::kWarning,
                          "no compute in the trace: all communication counts as exposed");
  }
  int64_t no_bytes = 0, no_kind = 0;
  for (const Collective& c : timeline.collectives) {
    no_bytes += c.bytes == 0 ? 1 : 0;
    no_kind += c.kind ? 0 : 1;
  }
  if (no_bytes > 0) {
    trace::add_diagnostic(diagnostics, Severity::kNote,
                          "collectives whose message size is not in the trace count 0 bytes",
                          no_bytes);
  }
  if (no_kind > 0) {
    trace::add_diagnostic(diagnostics, Severity::kNote,
                          "communication of unknown kind is listed as 'unknown'", no_kind);
  }
}

RankAnalysis analyze_rank(const Trace& trace,
                          const trace::Run& run,
                          const LatestStarts& latest,
                          Timeline timeline,
                          std::vector<trace::Diagnostic>& diagnostics) {
  RankAnalysis rank;
  rank.rank = trace.metadata.rank.value_or(0);
  rank.device = timeline.device;
  const Partition partition(timeline);
  rank.figures = partition.figures(timeline.span);
  for (const Step& step : timeline.steps) {
    rank.steps.push_back({step.number, step.window, partition.figures(union_of({step.window}))});
  }
  if (!run.planned || run.planned->plan.plan.views == plan::Views::kFrozen) {
    rank.frozen_views = find_frozen_views(trace, timeline, partition, timeline.span);
  }
  const FrozenViews* frozen = rank.frozen_views ? &*rank.frozen_views : nullptr;
  rank.units = unit_figures(trace, timeline, partition, timeline.span, {frozen, &latest});
  for (uint32_t track = 0; track < timeline.busy.size(); ++track) {
    if (!timeline.busy[track].empty()) {
      rank.streams.push_back({stream_name(trace, track, timeline.device),
                              length_of(intersect(timeline.busy[track], timeline.span))});
    }
  }
  const trace::PlannedInputs* planned = run.planned ? &*run.planned : nullptr;
  rank.order = check_order(step_orders(trace, timeline, planned, diagnostics));
  explain(timeline, rank, diagnostics);
  return rank;
}

}  // namespace

Analysis analyze(const trace::Run& run, const AnalysisOptions& options) {
  Analysis out;
  out.diagnostics = run.diagnostics;
  const LatestStarts latest = run.traces.size() > 1 ? latest_starts(run.traces) : LatestStarts();
  bool any_step = false;
  for (const Trace& trace : run.traces) {
    Timeline timeline = make_timeline(trace, options.timeline);
    if (options.steps) {
      choose_steps(timeline, *options.steps);
    }
    any_step = any_step || !timeline.steps.empty();
    for (const std::vector<trace::Diagnostic>* list :
         {&trace.diagnostics, &std::as_const(timeline.diagnostics)}) {
      for (const trace::Diagnostic& d : *list) {
        trace::add_diagnostic(out.diagnostics, d.severity, d.message, d.count);
      }
    }
    out.ranks.push_back(analyze_rank(trace, run, latest, std::move(timeline), out.diagnostics));
  }
  if (options.steps && !any_step) {
    throw InputError(run.source,
                     fmt::format("no step in {}:{}", options.steps->first, options.steps->last));
  }
  return out;
}

}  // namespace shardlens::analysis
