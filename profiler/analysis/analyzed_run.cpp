#include "profiler/analysis/analyzed_run.h"

#include <utility>

#include "core/base/error.h"
#include "profiler/trace/bytes/parallel.h"

namespace shardlens::analysis {

AnalyzedRun AnalyzedRun::open(std::span<const std::filesystem::path> paths,
                              const trace::ReadOptions& options,
                              const TimelineOptions& timeline) {
  auto run = std::make_unique<trace::Run>(trace::Run::open(paths, options));
  TimelineOptions stopped = timeline;
  if (stopped.progress == nullptr) {
    stopped.progress = options.progress;
  }
  AnalyzedRun out(*run, stopped);
  if (lacks_planned(*run)) {
    out.pass_ = find_planned(*run, out.timeline(0));
  }
  out.owned_ = std::move(run);
  return out;
}

AnalyzedRun::AnalyzedRun(const trace::Run& run, const TimelineOptions& options)
    : run_(&run),
      options_(options),
      timelines_(run.traces.size()),
      made_(run.traces.size()),
      ddp_(run.traces.size()) {}

AnalyzedRun::AnalyzedRun(const trace::Run& run,
                         std::span<const Timeline> timelines,
                         Matching matching)
    : run_(&run), given_(timelines), matching_(std::move(matching)), ddp_(run.traces.size()) {
  SHARDLENS_CHECK(timelines.size() == run.traces.size(), "each rank needs a timeline");
}

const Timeline& AnalyzedRun::timeline(size_t rank) const {
  if (!given_.empty()) {
    return given_[rank];
  }
  if (made_[rank] == 0) {
    TimelineOptions options = options_;
    options.planned = plan_of(*run_);
    timelines_[rank] = make_timeline(run_->traces[rank], options);
    made_[rank] = 1;
  }
  return timelines_[rank];
}

std::span<const Timeline> AnalyzedRun::matched() const {
  (void)matching();
  return given_.empty() ? std::span<const Timeline>(timelines_) : given_;
}

const Matching& AnalyzedRun::matching() const {
  if (!matching_) {
    trace::in_parallel(timelines_.size(), [this](size_t rank) { (void)timeline(rank); });
    matching_ = match_ranks(run_->traces, timelines_);
  }
  return *matching_;
}

const DdpLog& AnalyzedRun::ddp_log(size_t rank) const {
  const Timeline& of = timeline(rank);
  if (of.fsdp.source == FsdpSource::kNone && run_->traces[rank].units.empty()) {
    return of.ddp;
  }
  if (!ddp_[rank]) {
    ddp_[rank] = read_ddp_log(run_->traces[rank]);
  }
  return *ddp_[rank];
}

const RecoveredPlan& AnalyzedRun::recovered_plan() const {
  if (!recovered_) {
    static const DdpLog kNone;
    const Timeline& first = timeline(0);
    recovered_ = recover_plan(run_->traces.front(), first,
                              first.fsdp.source == FsdpSource::kNone ? ddp_log(0) : kNone);
  }
  return *recovered_;
}

const RecordedPass& AnalyzedRun::recorded_pass() const {
  if (!pass_) {
    SHARDLENS_CHECK(run_->planned.has_value(), "the run has no plan of its own");
    RecordedPass pass;
    pass.recovered = analysis::recorded_pass(run_->traces.front(), timeline(0), run_->planned->plan,
                                             pass.diagnostics);
    pass_ = std::move(pass);
  }
  return *pass_;
}

}  // namespace shardlens::analysis
