#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiler/analysis/analysis.h"
#include "profiler/check/check_metrics.h"
#include "profiler/check/memory_peak.h"
#include "profiler/check/structure.h"
#include "profiler/trace/run.h"

namespace shardlens::check {

// A part of a step's time. For a unit: "compute_forward", "all_gather_backward" (its exposed time),
// "copy", …; for "<idle>": "host_late", ….
struct Part {
  std::string unit, part;
  double ns = 0;
};

// The conditions that must be equal for two runs to be compared. Keys that only one run has are
// ignored.
struct Fingerprint {
  std::map<std::string, std::string> machine;  // device, driver, NCCL, world size, model, batch, …
  std::map<std::string, std::string> versions;  // reported, but may differ: torch, host, …
  std::string plan;                             // plan.json's text, or ""
};
[[nodiscard]] Fingerprint fingerprint_of(const trace::Run& run);

// One item of a step: the n-th run of compute, copy or collective of a unit in a section of the
// step.
struct ItemKey {
  std::string section, unit, kind;  // "backward", "layers.3", "reduce_scatter"
  int64_t occurrence = 0;           // in its step, from 0
  auto operator<=>(const ItemKey&) const = default;
};
struct Item {  // a part of the step, measured in each step
  ItemKey key;
  std::vector<double> steps;  // ns, for each step that has the item
  double exposed = 0;         // ns per step
};

// The summary of one run: all that `check` and `compare` need, and all that a baseline file
// contains.
//
// [Note: Steps and ranks of a value] The time of a step is that of its slowest rank. A run's value
// is the mean over the middle half of its steps after warm-up, sorted by that time (midmean). The
// parts are measured on the same steps and ranks, so they sum to the value.
struct RunSummary {
  std::string source;
  // Runs that were recorded at one time have the same session; 0: not saved in a baseline file.
  int64_t session = 0;
  Fingerprint fingerprint;
  std::vector<int64_t> ranks;
  int64_t steps = 0, warmup = 0, used = 0;  // recorded; left out as warm-up; compared
  bool exact = false;                       // simulated: the times have no noise
  MetricValues metrics;
  std::vector<Part> step_parts;     // sum to step_time
  std::vector<Part> exposed_parts;  // sum to exposed_comm
  std::vector<Item> items;          // only with SummaryOptions::items; not in a baseline file
  std::vector<RankStructure> structure;
  std::vector<MemoryPeak> memory;  // of the compared steps; empty: not recorded
  std::vector<std::string>
      late_reductions;              // units whose reductions are late because of frozen views
  std::vector<std::string> doubts;  // reasons against a verdict: records lost, …
  std::vector<std::string> notes;
};

struct SummaryOptions {  // what is summed up
  analysis::TimelineOptions timeline;
  std::optional<analysis::StepRange> steps;  // nullopt: all; warm-up is detected only within these
  bool items = false;                        // also fill RunSummary::items
};

// Errors: InputError with the run if its traces have no steps, or its ranks have none of the
// requested steps in common.
[[nodiscard]] RunSummary summarize(const trace::Run& run, const SummaryOptions& options = {});

}  // namespace shardlens::check
