#include "profiler/analysis/analysis.h"

#include <optional>
#include <utility>

#include "profiler/analysis/analyzed_run.h"
#include "profiler/analysis/rank_summary.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/trace/bytes/parallel.h"

namespace shardlens::analysis {
namespace {

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

// `shared`: the run's timelines, if others use them too. Otherwise each is dropped when its rank
// has been summarized, because those of many ranks need much memory.
Analysis analyze_ranks(const trace::Run& run,
                       const AnalyzedRun* shared,
                       const AnalysisOptions& options) {
  const size_t ranks = run.traces.size();
  const bool changes = options.steps || options.critical_path || options.keep_timelines;
  std::vector<Timeline> timelines(ranks);
  std::vector<std::optional<Dependencies>> dependencies(ranks);
  std::vector<RankSummary> summaries(ranks);
  const trace::PlannedInputs* planned = run.planned ? &*run.planned : nullptr;
  TimelineOptions timeline_options = options.timeline;
  timeline_options.planned = plan_of(run);
  trace::in_parallel(ranks, [&](size_t i) {
    const trace::Trace& trace = run.traces[i];
    const auto position = static_cast<int64_t>(i);
    if (shared != nullptr && !changes) {
      const Timeline& timeline = shared->timeline(i);
      summaries[i] = summarize_all_steps(trace, timeline, Dependencies(trace, timeline), planned,
                                         position, options);
    } else {
      // Not as one conditional expression, which would copy the timeline that is made.
      if (shared != nullptr) {
        timelines[i] = shared->timeline(i);
      } else {
        timelines[i] = make_timeline(trace, timeline_options);
      }
      dependencies[i].emplace(trace, timelines[i]);
      summaries[i] = summarize(trace, timelines[i], *dependencies[i], planned, position, options);
    }
    summaries[i].run_diagnostics = run.diagnostics;
    if (!options.critical_path) {
      dependencies[i].reset();
      if (!options.keep_timelines) {
        timelines[i] = {};
      }
    }
  });
  Analysis out = merge(summaries, run.source);
  if (options.critical_path || options.keep_timelines) {
    for (size_t i = 0; i < ranks; ++i) {
      copy_matches(summaries[i].collectives, timelines[i]);
    }
  }
  if (options.critical_path) {
    find_critical_paths(run, timelines, dependencies, out);
  }
  if (options.keep_timelines) {
    out.timelines = std::move(timelines);
  }
  return out;
}

}  // namespace

Analysis analyze(const trace::Run& run, const AnalysisOptions& options) {
  return analyze_ranks(run, nullptr, options);
}

Analysis analyze(const AnalyzedRun& run, const AnalysisOptions& options) {
  return analyze_ranks(run.run(), &run, options);
}

}  // namespace shardlens::analysis
