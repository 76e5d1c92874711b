#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/scenario/scenario.h"
#include "sim/search/candidates.h"
#include "sim/search/outcome.h"

namespace shardlens::sim {

struct Found {
  Candidate candidate;
  Outcome outcome;
};

struct SearchOptions {
  Bytes memory_limit = 0;  // beside that of the machine
  unsigned threads = 0;    // 0: as many as cores
  // Outcomes of an earlier search of the same, by name_of(); they are not predicted again.
  std::unordered_map<std::string, Outcome> known;
  // Called from one thread at a time, for each candidate predicted now.
  std::function<void(const Found&, size_t done, size_t all)> on_progress;
  const std::atomic<bool>* cancelled = nullptr;  // asked between candidates
};

struct SearchResult {
  size_t all = 0;        // candidates of the space
  size_t evaluated = 0;  // predicted, now or earlier
  size_t pruned = 0;     // that cannot fit, because a smaller one does not
  size_t refused = 0;    // of which a calibration does not know enough
  std::string refusal;   // of the first of them
  bool cancelled = false;
  std::vector<Found> pareto;  // of step time, peak memory and exposed communication, fastest first
  std::string why;            // the fastest wins; empty without one that fits

  [[nodiscard]] const Found* best() const { return pareto.empty() ? nullptr : &pareto.front(); }
};

// Predicts every candidate of a scenario, on all cores: its model, machine, ranks, and its plan's
// precision and dialect; its step's samples are divided into microbatches in every way.
//
// [Note: Pruning] Alike otherwise, a larger microbatch keeps more activations: once one does not
// fit, larger ones are left out, but for the one without accumulation, which has no gradients of
// microbatches before. What does not fit by its parameters, gradients and optimizer states alone is
// not simulated.
//
// The result does not depend on the number of threads. If nothing fits, `pareto` is empty. Errors:
// InputError if the model cannot be planned or is not known (traces without a config.json), or
// every candidate is refused.
[[nodiscard]] SearchResult search(const Scenario& scenario, const SearchOptions& options);

// Of those that fit, the ones that no other beats or equals in all three figures.
[[nodiscard]] std::vector<Found> pareto_front(std::vector<Found> found);

}  // namespace shardlens::sim
