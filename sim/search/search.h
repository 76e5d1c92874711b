#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/scenario/scenario.h"
#include "sim/search/candidates.h"
#include "sim/search/outcome.h"
#include "sim/search/precision.h"

namespace shardlens::sim {

struct Found {  // a candidate and its figures
  Candidate candidate;
  Outcome outcome;
};

struct SearchOptions {     // limits of a search
  Bytes memory_limit = 0;  // in addition to the machine's own; 0: none
  unsigned threads = 0;    // 0: one per core
  // Precisions from which the search may choose, without duplicates; empty: only the plan's.
  std::vector<Precision> precisions;
  // Outcomes of an earlier, identical search, by name_of(); they are not predicted again.
  std::unordered_map<std::string, Outcome> known;
  // Called from one thread at a time, for each candidate that this search predicts.
  std::function<void(const Found&, size_t done, size_t all)> on_progress;
  const std::atomic<bool>* cancelled = nullptr;  // checked between candidates
};

struct PrecisionResult {  // the fastest candidate of a precision
  Precision precision;
  std::optional<Found> best;  // nullopt: none fits
};

struct SearchResult {    // what a search found
  size_t all = 0;        // candidates of the space
  size_t evaluated = 0;  // predicted by this search or an earlier one
  size_t pruned = 0;     // skipped, since a smaller microbatch does not fit
  size_t refused = 0;    // not predicted, since the machine's calibration lacks measurements
  std::string refusal;   // error message of the first refused candidate
  bool cancelled = false;
  std::vector<Found> pareto;  // of step time, peak memory and exposed communication, fastest first
  std::vector<PrecisionResult> by_precision;  // of SearchOptions::precisions
  std::string why;  // why the fastest candidate is faster; "": no candidate fits

  [[nodiscard]] const Found* best() const { return pareto.empty() ? nullptr : &pareto.front(); }
};

// Predicts all candidates of a scenario, in parallel. Model, machine, number of ranks and the
// plan's dialect are the scenario's, and so is its precision unless options.precisions has others;
// the samples of its step are divided into microbatches in every way.
//
// [Note: Pruning] Of candidates that differ only in their microbatch, a larger one keeps more
// activations. So if one does not fit, larger ones are skipped, except the one without
// accumulation, which has no gradients of earlier microbatches. A candidate whose parameters,
// gradients and optimizer states do not fit is not simulated.
//
// [Note: Offload] If nothing fits, all candidates are predicted again with cpu_offload. It takes
// less memory for more time, in copies and in the optimizer on the host, so it is no dimension of
// the space.
//
// The result does not depend on the number of threads. If nothing fits, `pareto` is empty. Errors:
// InputError if the model cannot be planned or is unknown (traces without a config.json), or if
// every candidate is refused.
[[nodiscard]] SearchResult search(const Scenario& scenario, const SearchOptions& options);

// The target with a limit on what its allocator reserves; 0: only the target's own.
[[nodiscard]] Target limited(Target target, Bytes limit);

// The candidates that fit and that no other one beats or equals in all three figures.
[[nodiscard]] std::vector<Found> pareto_front(std::vector<Found> found);

}  // namespace shardlens::sim
