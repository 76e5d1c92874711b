#pragma once

#include <optional>
#include <vector>

#include "core/base/error.h"
#include "sim/search/predictions.h"

namespace shardlens::sim {

// The predictions for a list of candidates, by index.
struct PredictedList {
  std::vector<Candidate> candidates;
  std::vector<std::optional<Outcome>> outcomes;     // nullopt: left out as too large, or refused
  std::vector<std::optional<InputError>> refusals;  // the machine lacks measurements, …
  bool cancelled = false;                           // the rest was not tried
};

// Predicts all candidates in parallel, except those of [Note: Pruning] of search.h. In the list,
// candidates that differ only in their microbatch follow each other, sorted by its size.
[[nodiscard]] PredictedList predict_all(const Scenario& scenario,
                                        const Target& target,
                                        const SearchOptions& options,
                                        std::vector<Candidate> candidates,
                                        Predictions& predictions);

}  // namespace shardlens::sim
