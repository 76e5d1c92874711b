#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiler/analysis/analysis.h"
#include "profiler/check/check_metrics.h"
#include "profiler/check/structure.h"
#include "profiler/trace/run.h"

namespace shardlens::check {

// A share of a step: "compute_forward", "all_gather_backward" (its exposed time), "copy", … of a
// unit; "host_late", … of "<idle>".
struct Part {
  std::string unit, part;
  double ns = 0;
};

// Where two runs must agree to be compared. Keys that only one of them knows say nothing.
struct Fingerprint {
  std::map<std::string, std::string> machine;  // device, driver, NCCL, world size, model, batch, …
  std::map<std::string, std::string> versions;  // told, but no hindrance: torch, host, …
  std::string plan;                             // plan.json's text, or ""
};
[[nodiscard]] Fingerprint fingerprint_of(const trace::Run& run);

// One thing that a step does: the n-th run of compute, copy or collective of a unit in a part of
// the step.
struct ItemKey {
  std::string section, unit, kind;  // "backward", "layers.3", "reduce_scatter"
  int64_t occurrence = 0;           // in its step, from 0
  auto operator<=>(const ItemKey&) const = default;
};
struct Item {
  ItemKey key;
  std::vector<double> steps;  // ns in each step that has it
  double exposed = 0;         // ns per step
};

// What one run says: all that `check` and `compare` need of it, and all that a baseline file keeps.
//
// [Note: Steps and ranks of a value] The time of a step is that of its slowest rank. A run's value
// is the mean over the middle half of its settled steps by that time (midmean). The parts are those
// of the same steps and ranks, so they sum to the value.
struct RunSummary {
  std::string source;
  Fingerprint fingerprint;
  std::vector<int64_t> ranks;
  int64_t steps = 0, warmup = 0, used = 0;  // recorded; left out at the begin; compared
  bool exact = false;                       // simulated: nothing in it is noise
  MetricValues metrics;
  std::vector<Part> step_parts;     // sum to step_time
  std::vector<Part> exposed_parts;  // sum to exposed_comm
  std::vector<Item> items;          // where they were asked for; not in a baseline file
  std::vector<RankStructure> structure;
  std::vector<std::string> late_reductions;  // units whose reductions frozen views hold up
  std::vector<std::string> doubts;           // why no verdict may rest on it: records lost, …
  std::vector<std::string> notes;
};

struct SummaryOptions {
  analysis::TimelineOptions timeline;
  std::optional<analysis::StepRange> steps;  // nullopt: all; warm-up is looked for in these alone
  bool items = false;                        // RunSummary::items too
};

// Errors: InputError naming the run for traces that mark no steps, or ranks without one of the
// wanted steps in common.
[[nodiscard]] RunSummary summarize(const trace::Run& run, const SummaryOptions& options = {});

}  // namespace shardlens::check
