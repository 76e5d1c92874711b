#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "profiler/analysis/analysis.h"
#include "profiler/analysis/figures/rank_collectives.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {

// The data of one rank that the analysis of its run needs, without the trace.
//
// [Note: One path] Every analysis of a run is the merge of its ranks' summaries: those made in
// memory from traces, or those read from files (summary_file.h). So both give the same figures.
struct RankSummary {
  std::string source;           // the trace, for messages
  std::optional<int64_t> rank;  // nullopt: neither the trace nor its name has one
  std::string comm_regex;       // of TimelineOptions::communication; set by who writes a file
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

// The same of all steps: `options` must not choose any. Does not change the timeline.
[[nodiscard]] RankSummary summarize_all_steps(const trace::Trace& trace,
                                              const Timeline& timeline,
                                              const Dependencies& dependencies,
                                              const trace::PlannedInputs* planned,
                                              int64_t position,
                                              const AnalysisOptions& options);

// The summary of a run's only trace, with all spans.
//
// Errors  UsageError if the run has several traces.
[[nodiscard]] RankSummary summarize(const trace::Run& run, const AnalysisOptions& options = {});

// Compares the ranks of a run and sets what other ranks decide, with one rank's figures in memory
// at a time: add() each rank, match(), then settle() each.
class RankMerge {
 public:
  // By rank. Keeps the collectives and moves them out of `rank`.
  void add(RankSummary& rank);
  // `source`: the run, for messages. Errors: InputError if steps were chosen and no rank has one of
  // them.
  void match(const std::string& source);
  // The rank that was added as number `position`; in their order.
  [[nodiscard]] RankAnalysis settle(size_t position, RankSummary& rank);
  [[nodiscard]] RankCollectives take_collectives(size_t position) {
    return std::move(collectives_[position]);
  }
  // The analysis, with no ranks in it; call it after settle() of the last rank.
  [[nodiscard]] Analysis take() { return std::move(out_); }

 private:
  void share_planned_orders(size_t position, std::vector<StepOrder>& orders);

  Analysis out_;
  std::vector<RankCollectives> collectives_;
  std::optional<StepRange> chosen_;
  bool has_steps_ = false;  // a rank has one of the chosen ones
  std::set<int64_t> recorded_steps_;
  int64_t unnumbered_ = 0;
  std::map<int64_t, std::vector<OrderEntry>> planned_;  // by kind of step
};

// The analysis of the run whose ranks these are, by rank. `source`: the run, for messages. Sets the
// matches in `ranks`, and moves their analyses.
//
// Errors  InputError if steps were chosen and no rank has one of them.
[[nodiscard]] Analysis merge(std::vector<RankSummary>& ranks, const std::string& source);

}  // namespace shardlens::analysis
