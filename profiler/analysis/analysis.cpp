#include "profiler/analysis/analysis.h"

#include <optional>
#include <utility>

#include "profiler/analysis/rank_summary.h"
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

}  // namespace

Analysis analyze(const trace::Run& run, const AnalysisOptions& options) {
  const size_t ranks = run.traces.size();
  std::vector<Timeline> timelines(ranks);
  std::vector<std::optional<Dependencies>> dependencies(ranks);
  std::vector<RankSummary> summaries(ranks);
  const trace::PlannedInputs* planned = run.planned ? &*run.planned : nullptr;
  trace::in_parallel(ranks, [&](size_t i) {
    timelines[i] = make_timeline(run.traces[i], options.timeline);
    dependencies[i].emplace(run.traces[i], timelines[i]);
    summaries[i] = summarize(run.traces[i], timelines[i], *dependencies[i], planned,
                             static_cast<int64_t>(i), options);
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

}  // namespace shardlens::analysis
