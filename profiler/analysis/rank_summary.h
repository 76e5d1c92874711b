#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/analysis/analysis.h"
#include "profiler/analysis/overlap/rank_collectives.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {

// What the analysis of a run needs of one of its ranks, without the trace.
//
// [Note: One path] Every analysis of a run is merge() of its ranks' summaries, so that ranks can be
// summarized one after the other, and their traces need not be in memory together.
struct RankSummary {
  // Complete but for what other ranks decide: transfers, causes, the planned order.
  RankAnalysis analysis;
  RankCollectives collectives;
  std::vector<UnitExposure> exposures;
  std::vector<StepOrder> orders;
  std::vector<int64_t> recorded_steps;             // of the trace, chosen or not
  std::optional<StepRange> chosen;                 // AnalysisOptions::steps
  int64_t unnumbered = 0;                          // collectives without a sequence number
  std::vector<trace::Diagnostic> run_diagnostics;  // equal in all ranks of a run
  std::vector<trace::Diagnostic> diagnostics;
};

// `timeline`: of the trace, with all its steps; those that are not chosen are removed from it.
// `position`: of the rank in the run, which is its number if the trace has none.
[[nodiscard]] RankSummary summarize(const trace::Trace& trace,
                                    Timeline& timeline,
                                    const Dependencies& dependencies,
                                    const trace::PlannedInputs* planned,
                                    int64_t position,
                                    const AnalysisOptions& options);

// The analysis of the run whose ranks these are, by rank: compares the ranks, and sets what other
// ranks decide. `source`: the run, for messages. Sets the matches in `ranks`, and moves their
// analyses.
//
// Errors  InputError if steps were chosen and no rank has one of them.
[[nodiscard]] Analysis merge(std::vector<RankSummary>& ranks, const std::string& source);

}  // namespace shardlens::analysis
