#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiler/check/check.h"
#include "profiler/check/run_summary.h"

namespace shardlens::check {

// The same thing in two sets of runs, found by what it is and never by when it ran.
struct ItemChange {
  ItemKey key;
  std::optional<double> baseline, candidate;  // ns per step, means over runs; nullopt: not there
  std::optional<double> baseline_exposed, candidate_exposed;
  double delta = 0;           // of the time; of an item that is on one side only, all of it
  bool within_noise = false;  // the change lies within the interval about zero

  [[nodiscard]] bool matched() const { return baseline && candidate; }
};

// Differences for people: no verdict, and nothing refused but other ranks.
struct Comparison {
  CheckResult result;             // metrics, structure, attribution of the step, notes
  std::vector<ItemChange> items;  // the largest change first
};

// Runs summarized with SummaryOptions::items. Noise is that between runs; with one run a side, that
// between its steps. Errors: InputError as of check_runs().
[[nodiscard]] Comparison compare_runs(const std::vector<RunSummary>& baseline,
                                      const std::vector<RunSummary>& candidate);

}  // namespace shardlens::check
