#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/analysis/figures.h"
#include "profiler/analysis/frozen_views.h"
#include "profiler/analysis/order.h"
#include "profiler/analysis/timeline.h"
#include "profiler/analysis/units.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {

// Steps first ≤ k < last.
struct StepRange {
  int64_t first = 0, last = 0;
};

struct AnalysisOptions {
  TimelineOptions timeline;
  std::optional<StepRange> steps;  // nullopt: all of the trace
};

struct StepFigures {
  int64_t step = 0;
  Interval window;
  Figures figures;
};

// One row of the timeline: a stream of the device, a thread that computes, or a communicator.
struct StreamFigures {
  std::string name;
  Nanoseconds busy = 0;
};

struct RankAnalysis {
  int64_t rank = 0;
  bool device = false;
  Figures figures;
  std::vector<StepFigures> steps;
  std::vector<UnitFigures> units;
  std::optional<FrozenViews> frozen_views;  // nullopt: not seen, or the plan says fresh
  std::vector<StreamFigures> streams;
  Order order;
};

// The answer to "how much communication was hidden, and where was it not". docs/metrics.md
// defines every figure.
struct Analysis {
  std::vector<RankAnalysis> ranks;
  std::vector<trace::Diagnostic> diagnostics;  // equal ones of several ranks are counted together
};

// Errors: InputError if `options.steps` names no step of any rank.
[[nodiscard]] Analysis analyze(const trace::Run& run, const AnalysisOptions& options = {});

}  // namespace shardlens::analysis
