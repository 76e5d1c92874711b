#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "profiler/analysis/fsdp_log/ddp_log.h"
#include "profiler/analysis/ranks/rank_matching.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {

// An opened run, and what its traces show: timelines, matched collectives, the recorded or the
// recovered plan. Each is found when it is first asked for, and once. The analysis, the simulator's
// measurements, recovery and the app are given this object, so that none finds it again.
//
// Ownership  open() owns the run; a run or timelines given to the constructor must outlive it.
// Threads    one thread at a time, but timeline() may be called for different ranks at a time.
// Errors     each function as what it asks for the first time: make_timeline(), recover_plan(),
//            recorded_pass().
class AnalyzedRun {
 public:
  // As open_run(). The traces of a run of shardlens.record are read with `options`, and its plan is
  // found in the timeline of the first rank. ReadOptions::progress also stops timelines.
  [[nodiscard]] static AnalyzedRun open(std::span<const std::filesystem::path> paths,
                                        const trace::ReadOptions& options = {},
                                        const TimelineOptions& timeline = {});
  explicit AnalyzedRun(const trace::Run& run, const TimelineOptions& options = {});
  // `timelines`: of all ranks, matched, with what that found. Their `lists` may have been emptied
  // if nothing is recovered.
  AnalyzedRun(const trace::Run& run, std::span<const Timeline> timelines, Matching matching);

  [[nodiscard]] const trace::Run& run() const { return *run_; }
  // With all steps. The matches of its collectives are set if matched() was called before.
  [[nodiscard]] const Timeline& timeline(size_t rank) const;
  // By rank, after match_ranks().
  [[nodiscard]] std::span<const Timeline> matched() const;
  [[nodiscard]] const Matching& matching() const;
  // What DDP did on a rank, also in a trace of Shardlens, whose timeline has none.
  [[nodiscard]] const DdpLog& ddp_log(size_t rank) const;
  // recover_plan() of the first rank.
  [[nodiscard]] const RecoveredPlan& recovered_plan() const;
  // recorded_pass() of the first rank with the run's own plan, which must be known.
  [[nodiscard]] const RecordedPass& recorded_pass() const;

 private:
  std::unique_ptr<const trace::Run> owned_;
  const trace::Run* run_ = nullptr;
  TimelineOptions options_;
  std::span<const Timeline> given_;
  // Found when first asked for.
  mutable std::vector<Timeline> timelines_;  // by rank
  mutable std::vector<uint8_t> made_;        // by rank: the timeline is; threads write one each
  mutable std::optional<Matching> matching_;
  mutable std::vector<std::optional<DdpLog>> ddp_;  // by rank; only those not in a timeline
  mutable std::optional<RecoveredPlan> recovered_;
  mutable std::optional<RecordedPass> pass_;
};

}  // namespace shardlens::analysis
