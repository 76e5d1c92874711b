#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/check/check.h"
#include "profiler/check/run_summary.h"

namespace shardlens::check {

// One item in two sets of runs, matched by its key and never by the time at which it ran.
struct ItemChange {
  ItemKey key;
  // In ns per step, means over runs; nullopt: not in these runs.
  std::optional<double> baseline, candidate;
  std::optional<double> baseline_exposed, candidate_exposed;
  double delta = 0;           // change of the time; all of the time if only one side has the item
  bool within_noise = false;  // the change is within the confidence interval around zero

  [[nodiscard]] bool matched() const { return baseline && candidate; }
};

// Differences for display, without a verdict; only different ranks are refused.
struct Comparison {
  CheckResult result;             // metrics, structure, attribution of the step, notes
  std::vector<ItemChange> items;  // largest change first
};

// Compares runs that were summarized with SummaryOptions::items. Noise is estimated between runs
// or, with one run on a side, between its steps. Errors: InputError as in check_runs().
[[nodiscard]] Comparison compare_runs(const std::vector<RunSummary>& baseline,
                                      const std::vector<RunSummary>& candidate);

}  // namespace shardlens::check
