#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/analysis/critical_path/critical_path.h"
#include "profiler/analysis/critical_path/idle.h"
#include "profiler/analysis/exposed/frozen_views.h"
#include "profiler/analysis/figures/attribution_figures.h"
#include "profiler/analysis/figures/communication_figures.h"
#include "profiler/analysis/figures/group_figures.h"
#include "profiler/analysis/figures/launch_figures.h"
#include "profiler/analysis/figures/memory_figures.h"
#include "profiler/analysis/figures/stream_figures.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/order/observed_order.h"
#include "profiler/analysis/order/order_checks.h"
#include "profiler/analysis/ranks/rank_matching.h"
#include "profiler/analysis/timeline/regions.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/analysis/units/block_figures.h"
#include "profiler/analysis/units/unit_figures.h"
#include "profiler/analysis/waste/waste.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {

// Steps first ≤ k < last.
struct StepRange {
  int64_t first = 0, last = 0;
};

enum class DetailLevel : uint8_t {  // how much RankAnalysis::detail lists
  kNone,
  kCollectives,  // RankDetail::idle, and spans of collectives
  kAll,          // without RankDetail::idle
};

struct AnalysisOptions {  // what is analyzed, and how closely
  TimelineOptions timeline;
  std::optional<StepRange> steps;           // nullopt: all steps of the trace
  bool critical_path = false;               // find the critical path of each step
  DetailLevel detail = DetailLevel::kNone;  // what RankAnalysis::detail contains
  bool keep_timelines = false;              // fill Analysis::timelines
  // Spans of this unit get the proof of their cause; needs a level of detail.
  std::optional<std::string> explained;
};

struct StepAnalysis {  // one step of a rank
  int64_t step = 0;
  Interval window;
  WindowFigures figures;
  IdleFigures idle;
};

struct StepPath {  // the critical path of one step
  CriticalPath path;
  std::vector<PathPart> parts;  // longest first
};

// The spans and time sets that the figures summarize.
struct RankDetail {
  std::vector<UnitSpan> spans;  // by start
  IntervalSet compute, communication, copy;
  // Why the device had nothing to do, by start; only of device traces.
  std::vector<IdlePart> idle;
  std::vector<Region> regions;  // of compilers and CUDA graphs, by start
};

struct RankAnalysis {  // all figures of one rank
  int64_t rank = 0;
  bool device = false;
  IntervalSet window;  // the time that `figures` cover
  WindowFigures figures;
  IdleFigures idle;
  LaunchFigures launch;  // device traces
  std::vector<MemoryFigures> memory;
  std::vector<StepPath> critical_paths;  // only with AnalysisOptions::critical_path
  std::vector<StepAnalysis> steps;
  std::vector<UnitFigures> units;
  std::vector<BlockFigures> blocks;                 // blocks alike of `units`
  std::vector<GroupFigures> groups;                 // process groups, the busiest first
  std::vector<CommunicationFigures> communication;  // by purpose, group and kind
  std::vector<AttributionFigures> attribution;      // empty without captured work
  std::vector<Waste> waste;                         // the most expensive first
  std::optional<FrozenViews> frozen_views;  // nullopt: not found, or the plan has fresh views
  std::vector<StreamFigures> streams;
  std::vector<std::string> unit_names;  // indexed by the units of ObservedEvent
  std::vector<ObservedOrder> observed;  // empty without FSDP's ranges
  Order order;
  std::optional<RankDetail> detail;
};

// Shows how much communication was overlapped with compute, and where it was not.
// docs/reference/metrics.md defines every figure.
struct Analysis {
  std::vector<RankAnalysis> ranks;
  Matching matching;                // across ranks; empty with one trace
  std::vector<Timeline> timelines;  // by rank; only with AnalysisOptions::keep_timelines
  // Equal diagnostics of several ranks are merged and counted.
  std::vector<trace::Diagnostic> diagnostics;
};

// Errors: InputError if no rank has any of the steps in `options.steps`; RuntimeFault if the
// analysis was stopped.
[[nodiscard]] Analysis analyze(const trace::Run& run, const AnalysisOptions& options = {});

class AnalyzedRun;
// The same with the timelines of a run that others use too; options.timeline is not read.
[[nodiscard]] Analysis analyze(const AnalyzedRun& run, const AnalysisOptions& options = {});

}  // namespace shardlens::analysis
